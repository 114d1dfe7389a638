"""The profile of a server: what is known of it from outside, what was measured, and how far that can be trusted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from calibrate.batch_curve import make_batch_curve
from calibrate.fit import make_validity
from calibrate.grid import Point
from calibrate.options import CalibrateOptions
from calibrate.profile_file import layout
from calibrate.server.address import Address
from calibrate.server.dialect import Dialect
from calibrate.server.fit import Fit, fit, repeat_spread
from calibrate.server.load import Client
from calibrate.server.measure import Findings
from simserve.model_spec import ModelSpec
from simserve.step_time.profile_schema import (
    SCHEMA_VERSION,
    ModelDimensions,
    Profile,
    Provenance,
    content_digest,
    parse_profile,
)


def describe(address: Address, dialect: Dialect, spec: ModelSpec, options: CalibrateOptions) -> Provenance:
    """Where and what; the device, threads, kernels and versions behind an address are not known. Of the address only
    host and port are kept, and the command is put together again from what may be shown."""
    dimensions = ModelDimensions.of(spec)
    told = options.device != "auto"
    return Provenance(
        origin="server",
        source=f"{address}, model {dialect.model_id}",
        model=spec.name,
        dimensions=dimensions,
        config_hash=dimensions.config_hash,
        weights=None,
        device="unknown" if options.device == "auto" else options.device,
        device_name=f"{options.device if told else 'whatever runs'} behind {address}",
        driver=None,
        num_cpus=None,
        threads=None,
        dtype=options.dtype,
        weight_scheme=options.weights,
        attention=None,
        kv_cache=None,
        clock="wall",
        clock_reason="arrival times at a client; no other clock can be read from outside",
        torch_version=None,
        transformers_version=None,
        python_version=None,
        platform=None,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        command=command_of(address, options),
        duration_s=0.0,
    )


def command_of(address: Address, options: CalibrateOptions) -> str:
    """The command without path, credentials or key."""
    words = ["simserve", "calibrate", "--url", f"{address.scheme}://{address}"]
    words += ["--model", options.model, "--dtype", options.dtype, "--grid", options.grid]
    for name in ("weights", "kv_heads", "max_batch_size", "max_context", "max_prefill_tokens", "repeats"):
        value = getattr(options, name)
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    return shlex.join(words)


def assemble(
    name: str, provenance: Provenance, findings: Findings, notes: Sequence[str], duration_s: float
) -> tuple[Profile, str]:
    """Fit what was found; the profile and the text of its file. Raises ``CalibrationError``."""
    fitted = fit(findings.samples)
    made = provenance.model_copy(
        update={"duration_s": round(duration_s, 1), "notes": (*notes, *_errors(findings, fitted))}
    )
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "provenance": made.model_dump(mode="json"),
        "held_out": fitted.held_out.model_dump(mode="json"),
        "validity": make_validity(fitted.prefill, fitted.decode).model_dump(mode="json"),
        "kv_bytes_per_token": None,
        "batch_curve": make_batch_curve(fitted.decode).model_dump(mode="json"),
        "prefill": fitted.prefill.model_dump(mode="json"),
        "decode": fitted.decode.model_dump(mode="json"),
        "samples": [sample.model_dump(mode="json") for sample in findings.samples],
    }
    content["digest"] = content_digest(content)
    return parse_profile(content, name), layout(content) + "\n"


def notes_of(client: Client, dialect: Dialect, round_trip_s: float, findings: Findings) -> list[str]:
    """How the measuring went."""
    notes = [
        f"measured from outside: TTFT also holds HTTP, tokenising and queueing (a bare request took"
        f" {round_trip_s * 1e3:.2f} ms), ITL whatever the server does between steps",
        dialect.note,
    ]
    if findings.countings:
        notes.append(f"tokens counted by {' or '.join(sorted(findings.countings))}; events were never taken for tokens")
    if findings.lags_s:
        typical, late = np.percentile(findings.lags_s, [50, 95]) * 1e3
        notes.append(
            f"this client was late by {typical:.2f} ms (median) and {late:.2f} ms (95 %) when it read the clock"
        )
    if findings.offs:
        notes.append(
            f"lengths are nominal: contexts and prompts were off by {max(map(abs, findings.offs)):.1f} at most"
        )
    if client.failures:
        what = ", ".join(f"{count} × {reason}" for reason, count in sorted(client.failures.items()))
        notes.append(f"tried again after {what}")
    return notes + _left_out(findings.left_out)


def _left_out(left_out: dict[Point, str]) -> list[str]:
    by_reason: dict[str, int] = {}
    for why in left_out.values():
        by_reason[why] = by_reason.get(why, 0) + 1
    return [f"{count} points left out: {why}" for why, count in by_reason.items()]


def _errors(findings: Findings, fitted: Fit) -> list[str]:
    notes = []
    spread = repeat_spread(findings.samples)
    if spread is not None:
        notes.append(f"repeats of a point lay {spread:.1%} from its median on average")
    dirty = sum(sample.dirty for sample in findings.samples)
    if dirty:
        notes.append(f"{dirty} of {len(findings.samples)} samples were disturbed by this client's own lateness")
    pairs = f"{fitted.pair_s * 1e9:.3g} ns a (query, key) pair, from the bend of TTFT over the prompt's length"
    return [*notes, f"prefill over cached tokens was not measured: {pairs}; such steps are flagged as extrapolated"]
