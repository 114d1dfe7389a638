"""What ``simserve trace fit`` prints: how far the generator is from the trace, in figures, by client, and a picture."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from simserve.scenario.messages import printable
from simserve.trace_tools.picture import columns
from simserve.trace_tools.show import WIDTH_IN_A_PIPE, duration

LABELS = {"gap_s": "gaps between arrivals", "prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}
OF_SESSIONS = {
    "gap_s": "gaps between sessions",
    "session_turns": "turns of a session",
    "new_tokens": "new tokens of a turn",
    "wait_s": "waits after answers",
}
UNKNOWN, HELD = "–", "tokens held in a cache, by steps"
OTHERWISE = "prompts meet other answers than in the trace: a fit --by a column that tells kinds apart may be nearer"
FAR_HELD = 0.1
COINCIDE = "clients' bursts come together in the trace, and each tenant's by themselves: a fit without --by has them"
FAR, TOGETHER = 0.1, 2.0  # gaps of all that are so far, and by so much further than those of any client
Quality = dict[str, Any]


def show_fit(quality: Quality, name: str, console: Console) -> None:
    """Distances with those between two draws; means, burstiness and correlation of both; each client; both curves."""
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)
    console.print(_distances(quality, name))
    console.print(_figures(quality))
    if "clients" in quality:
        console.print(_clients(quality["clients"]))
    curve = quality["rate_curve"]
    peak = max(*curve["trace"], *curve["generator"], 1)
    for label in ("trace", "generator"):
        drawn = columns([*curve[label], peak])[:-1]  # both on one scale
        console.print(f"  {label:>9} {drawn}", highlight=False, soft_wrap=True)
    if quality["clock_is_coarse"]:
        tick = f"the trace's clock steps by {quality['clock_tick_s']:g} s: gaps are compared so"
        console.print(f"  {tick}", highlight=False, soft_wrap=True)
    held = quality["means"]["tokens_held_by_steps"]
    if abs(held["generator"] / held["trace"] - 1) > FAR_HELD and "session_turns" not in quality["distances"]:
        console.print(f"  {OTHERWISE}", highlight=False, soft_wrap=True)
    if _coincide(quality):
        console.print(f"  {COINCIDE}", highlight=False, soft_wrap=True)
    if quality["left_out"]:
        console.print(f"  not in the generator: {', '.join(quality['left_out'])}", highlight=False, soft_wrap=True)


def _distances(quality: Quality, name: str) -> Table:
    table = Table(title=printable(f"{name}: fit"), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in ("", "from the trace", "between two draws"):
        table.add_column(heading, justify="right" if heading else "left")
    labels = LABELS | (OF_SESSIONS if "session_turns" in quality["distances"] else {})
    for key, each in quality["distances"].items():
        table.add_row(f"KS distance, {labels[key]}", f"{each['trace']:.3f}", f"{each['chance']:.3f}")
    curve = quality["rate_curve"]
    table.add_row("requests at another time", f"{curve['misplaced_share']:.1%}", f"{curve['misplaced_by_chance']:.1%}")
    return table


def _figures(quality: Quality) -> Table:
    """Figures that both have."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "trace", "generator"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = [(f"mean {LABELS.get(key, HELD)}", each, ",.1f") for key, each in quality["means"].items()]
    rows.append(("rank correlation, prompt and output", quality["prompt_output_rank_correlation"], "+.2f"))
    rows.append(("cv of gaps", quality["gap_cv"], ".3g"))
    for each in quality["dispersion"]:
        rows.append((f"variance over mean, requests in {duration(each['window_s'])}", each, ".3g"))
    for label, values, form in rows:
        table.add_row(label, *(_text(values[of], form) for of in ("trace", "generator")))
    return table


def _clients(clients: dict[str, Quality]) -> Table:
    """A line per client: what it has in the trace, and how far its tenant is from that."""
    table = Table(title="KS distances of each client", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("client", "requests", "generated", "cv", "gaps", "prompts", "outputs", "correlation", "generated"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    for name, each in clients.items():
        count, correlation = each["num_requests"], each["prompt_output_rank_correlation"]
        distances = (_text(each["distances"].get(key, {}).get("trace"), ".3f") for key in LABELS)
        table.add_row(
            *(name, f"{count['trace']:,}", f"{count['generator']:,}", f"{each['gap_cv']['trace']:.3g}", *distances),
            *(_text(correlation[of], "+.2f") for of in ("trace", "generator")),
        )
    return table


def _coincide(quality: Quality) -> bool:
    """Whether each client's gaps are well fitted, and those of all together are not."""
    if "clients" not in quality or "gap_s" not in quality["distances"]:
        return False
    of_all = quality["distances"]["gap_s"]["trace"]
    each = [
        client["distances"]["gap_s"]["trace"]
        for client in quality["clients"].values()
        if "gap_s" in client["distances"]
    ]
    return bool(of_all > max(FAR, TOGETHER * max(each, default=of_all)))


def _text(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
