"""A scenario's ``workload:`` to the requests and clients that every variant meets, made before any policy acts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from simserve.clients.plan import OPEN_LOOP, ClientPlan, Turns
from simserve.errors import NoTrace, ScenarioError, TraceError
from simserve.request import IntColumn, Ranges, RequestTable
from simserve.scenario.session_models import SessionsConfig
from simserve.scenario.workload_models import GeneratedWorkload, TenantsWorkload, TraceWorkload, WorkloadConfig
from simserve.workload.behaviour import client_plan
from simserve.workload.content import repeated_tokens, taken
from simserve.workload.conversations import continuing
from simserve.workload.generate import arrival_times_ns
from simserve.workload.generated_sessions import drawn_sessions
from simserve.workload.length_pairs import length_pairs
from simserve.workload.mixture import mixture
from simserve.workload.owners import with_limits
from simserve.workload.prefixes import ON_TOP, WITHIN, begun_alike, drawn_prefixes, first_of_session, in_words
from simserve.workload.refusal import refusal
from simserve.workload.replayed_sessions import in_sessions, whole_sessions, with_thoughts
from simserve.workload.resample import blocks_in_words, circular_blocks, resampled
from simserve.workload.resampled_sessions import drawn_sessions_anew
from simserve.workload.streams import stream
from simserve.workload.timestamps import NS_PER_S
from simserve.workload.trace import MAX_SPAN_S, UNDECLARED, Trace, read_trace


@dataclass(frozen=True)
class Workload:
    """The requests, in words what was odd about them (rows dropped, sorted, cut, or raised), and who sends them."""

    table: RequestTable
    notes: tuple[str, ...] = ()
    clients: ClientPlan = OPEN_LOOP


def build_workload(config: WorkloadConfig, seed: int, base_dir: Path) -> Workload:
    """The requests of a workload and its clients; a trace's path is relative to ``base_dir``. The same seed gives the
    same bytes. In a closed loop the table's times are all 0: the clients decide.

    Requests of a trace that wait for an answer are sent after it (``clients.turns``). Raises TraceError for a bad
    trace, ScenarioError for times that would take decades or blocks longer than the trace.
    """
    turns = None
    if isinstance(config, GeneratedWorkload) and config.sessions is not None:
        table, turns, notes = _generated_sessions(config, config.sessions, seed)
    elif isinstance(config, GeneratedWorkload):
        table, notes = _generated(config, seed)
    elif isinstance(config, TenantsWorkload):
        table, notes = mixture(config, seed, base_dir)
    else:
        table, turns, notes = _traced(config, seed, base_dir)
    clients = client_plan(config, len(table), seed)
    if turns is not None:
        clients = replace(clients, turns=with_thoughts(turns, clients.think_ns))
    return Workload(table, (*notes, *_idle_clients(clients, len(table))), clients)


def _idle_clients(clients: ClientPlan, num_requests: int) -> list[str]:
    """A note where there are more clients than they find to do."""
    num_units, unit, send = num_requests, "request", "send"
    if clients.turns is not None:
        num_units, unit, send = int((~clients.turns.follows).sum()), "session", "play"
    if clients.concurrency is None or clients.concurrency <= num_units:
        return []
    told = f"{unit}: 1 of them {send}s one" if num_units == 1 else f"{unit}s: {num_units:,} of them {send} one each"
    return [f"{clients.concurrency:,} clients for {num_units:,} {told}"]


def _generated(config: GeneratedWorkload, seed: int) -> tuple[RequestTable, list[str]]:
    """One random stream per column, so that changing a distribution leaves the other columns as they were."""
    n = config.num_requests
    at_once = np.zeros(n, np.int64)
    arrival_ns = arrival_times_ns(config.arrivals, n, stream(seed, "arrivals")) if config.arrivals else at_once
    num_prompt_tokens, num_output_tokens, cut = length_pairs(config, n, partial(stream, seed))
    notes = [f"{count:,} of {n:,} {name} were cut to the distribution's max" for name, count in cut.items() if count]
    declared, raised = _declared(np.full(n, UNDECLARED, np.int64), num_output_tokens, config.max_output_tokens)
    table = RequestTable(arrival_ns, num_prompt_tokens, num_output_tokens, declared, np.zeros(n, np.int64))
    if config.shared_prefixes:
        begun = drawn_prefixes(config.shared_prefixes, n, stream(seed, "shared_prefixes"))
        table = replace(table, num_prompt_tokens=num_prompt_tokens + begun.num_tokens, content=begun)
        raised.append(in_words(table, ON_TOP))
    return table, notes + raised


def _generated_sessions(
    config: GeneratedWorkload, sessions: SessionsConfig, seed: int
) -> tuple[RequestTable, Turns, list[str]]:
    drawn = drawn_sessions(config, sessions, seed)
    at_once, outputs = np.zeros(config.num_requests, np.int64), drawn.num_output_tokens
    declared, raised = _declared(np.full(len(outputs), UNDECLARED, np.int64), outputs, config.max_output_tokens)
    table = RequestTable(at_once, drawn.num_prompt_tokens, outputs, declared, at_once, drawn.content)
    table = replace(table, session=drawn.session)
    num_sessions = drawn.num_sessions
    told = f"sessions: {len(table):,} requests in {num_sessions:,} sessions; {_repeated(table)}"
    notes = [*drawn.notes, *raised, told]
    if config.arrivals is None:
        return table, whole_sessions(drawn.session, drawn.wait_ns), notes
    starts_ns = arrival_times_ns(config.arrivals, num_sessions, stream(seed, "arrivals"))
    return *in_sessions(table, drawn.session, drawn.wait_ns, starts_ns[drawn.session]), notes


def _traced(config: TraceWorkload, seed: int, base_dir: Path) -> tuple[RequestTable, Turns | None, list[str]]:
    path = base_dir / config.trace
    try:
        trace = read_trace(path, config.format)
    except NoTrace as error:
        raise TraceError(f"{error}; name the trace by --set workload.trace=FILE") from None
    notes = list(trace.notes)
    n = min(config.limit or len(trace), len(trace))
    if n < len(trace):
        notes.append(f"{path.name}: the first {n:,} of {len(trace):,} requests kept (workload.limit)")
    if not trace.has_times and config.concurrency is None:
        raise refusal(path.name, "must have times (it has none); give workload.concurrency, which needs none")
    outputs = trace.num_output_tokens[:n]
    declared, raised = _declared(trace.max_output_tokens[:n], outputs, config.max_output_tokens)
    content = taken(trace.content, np.arange(n)) if trace.content else None
    prompts, priority = trace.num_prompt_tokens[:n], trace.priority[:n]
    tenants = with_limits(trace.tenants, config.tenant_slos, path.name)
    tenants = None if tenants is None else replace(tenants, of=tenants.of[:n])
    table = RequestTable(trace.arrival_ns[:n], prompts, outputs, declared, priority, content, tenants)
    notes += raised
    if config.shared_prefixes:
        table = _begun_alike(table, config, trace, seed, notes)
    table = replace(table, session=None if trace.session is None else trace.session[:n])
    is_own = trace.kept is not None  # what turns hold is their session's, and a session drawn again is another
    if _goes_on(config, trace):
        table, note = continuing(table)
        notes += [f"{path.name}: {note}"] if note else []
        is_own = bool(note) and isinstance(table.content, Ranges)
    wait_ns = None if trace.wait_ns is None else trace.wait_ns[:n]
    if config.resample is not None:
        table, wait_ns, note = _drawn_anew(table, wait_ns, config, seed, is_own)
        notes.append(note + ("; a request drawn again repeats its whole prompt" if content and not is_own else ""))
    if content is not None or is_own:
        notes.append(f"{path.name}: {_repeated(table)}")
    table, turns, note = _sent(table, wait_ns, config, path.name)
    return table, turns, notes + ([note] if note else [])


def _sent(
    table: RequestTable, wait_ns: IntColumn | None, config: TraceWorkload, where: str
) -> tuple[RequestTable, Turns | None, str]:
    """The requests at the times at which they will be sent, by whom, and a note."""
    session, n = table.session, len(table)
    if config.concurrency is not None:
        what = "send its requests" if session is None else "play its sessions"
        table = replace(table, arrival_ns=np.zeros(n, np.int64))
        turns = None if session is None else whole_sessions(session, wait_ns)
        return table, turns, f"{where}: its times are not used, {config.concurrency:,} clients {what} in order"
    own_ns = _rescaled(table.arrival_ns, config.rate_scale, where)
    if session is None or wait_ns is None:
        return replace(table, arrival_ns=own_ns), None, ""
    table, turns = in_sessions(table, session, wait_ns, own_ns)
    num_held = int(turns.follows.sum())
    return (
        table,
        turns,
        f"{where}: {num_held:,} of {n:,} requests are sent when the one before in their session has ended",
    )


def _goes_on(config: TraceWorkload, trace: Trace) -> bool:
    """Whether later turns are taken to begin with what was said before: where the trace itself does not tell what they
    keep, and by default where they wait for it."""
    if trace.session is None or trace.kept is not None:
        return False
    turns_wait = trace.wait_ns is not None or config.concurrency is not None
    return turns_wait if config.sessions_continue is None else config.sessions_continue


def _begun_alike(table: RequestTable, config: TraceWorkload, trace: Trace, seed: int, notes: list[str]) -> RequestTable:
    """The requests of a trace that does not tell what its prompts hold, with declared beginnings; those of one session
    begin alike."""
    name = Path(config.trace).name
    if table.content is not None:
        raise refusal(name, "tells what its prompts have in common: leave workload.shared_prefixes out")
    n = len(table)
    begun = drawn_prefixes(config.shared_prefixes, n, stream(seed, "shared_prefixes"))
    if trace.session is not None:
        begun = taken(begun, first_of_session(trace.session[:n]))
    begun, num_short = begun_alike(begun, table.num_prompt_tokens)
    if num_short:
        notes.append(f"{name}: {num_short:,} prompts are shorter than the shared prefix drawn for them, and have none")
    table = replace(table, content=begun)
    notes.append(f"{name}: {in_words(table, WITHIN)}")
    return table


def _repeated(table: RequestTable) -> str:
    repeated, total = repeated_tokens(table)
    return f"{100 * repeated / total:.1f} % of the prompt tokens would be hits of an infinite prefix cache"


def _drawn_anew(
    table: RequestTable, wait_ns: IntColumn | None, config: TraceWorkload, seed: int, are_others: bool
) -> tuple[RequestTable, IntColumn | None, str]:
    """``workload.resample``: of whole sessions where turns follow answers, else of requests, which then have none; and
    a note. ``are_others``: a session drawn again is another conversation."""
    assert config.resample is not None
    where, block_requests, n = Path(config.trace).name, config.resample.block_requests, len(table)
    rng = stream(seed, "resample")
    if block_requests > n:
        raise ScenarioError(
            f"workload.resample.block_requests: must be ≤ the number of requests (got {block_requests:,}, and {where} "
            f"has {n:,}); about its root is usual, here {math.isqrt(n):,}"
        )
    in_sessions = table.session is not None and (wait_ns is not None or config.concurrency is not None)
    try:
        if in_sessions:
            table, wait_ns = drawn_sessions_anew(table, wait_ns, block_requests, rng, are_others)
        else:
            table, wait_ns = resampled(table, circular_blocks(n, block_requests, rng)), None
    except OverflowError:
        raise refusal(where, f"must span at most {MAX_SPAN_S:,} seconds after workload.resample") from None
    return table, wait_ns, f"{where}: drawn anew in {blocks_in_words(block_requests, in_sessions)}"


def _rescaled(arrival_ns: IntColumn, rate_scale: float, where: str) -> IntColumn:
    """Arrivals ``rate_scale`` times as dense, rounded to nanoseconds; 1.0 leaves the integers alone."""
    if rate_scale == 1.0:
        return arrival_ns
    scaled = arrival_ns / rate_scale
    if scaled[-1] > MAX_SPAN_S * NS_PER_S:
        raise refusal(where, f"must span at most {MAX_SPAN_S:,} seconds after workload.rate_scale ({rate_scale:g})")
    return np.rint(scaled).astype(np.int64)


def _declared(declared: IntColumn, num_output_tokens: IntColumn, default: int | None) -> tuple[IntColumn, list[str]]:
    """What clients declare: the trace's figure, else the default (the workload's longest output), and never less than
    the true length, which the notes count."""
    fallback = int(num_output_tokens.max()) if default is None else default
    declared = np.where(declared == UNDECLARED, fallback, declared)
    num_raised = int((declared < num_output_tokens).sum())
    raised = f"{num_raised:,} of {len(declared):,} declared maxima were below the true output length: raised to it"
    return np.maximum(declared, num_output_tokens), [raised] if num_raised else []
