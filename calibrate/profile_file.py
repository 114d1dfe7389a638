"""From samples to a profile, and from a profile to the text of its file."""

from __future__ import annotations

import json
from typing import Any

from calibrate.batch_curve import make_batch_curve
from calibrate.fit import make_table, make_validity, point_medians, pooled_medians
from calibrate.fit_mixed import fit_composition
from calibrate.fit_repeated import fit_repeated
from calibrate.held_out_error import held_out_error
from calibrate.intervals import add_intervals
from calibrate.measure import Measurement
from calibrate.noise import make_drift, make_noise
from simserve.step_time.no_cache import fit_no_cache
from simserve.step_time.profile_schema import (
    SCHEMA_VERSION,
    KvBytes,
    Profile,
    Provenance,
    RepeatedSteps,
    content_digest,
    parse_profile,
)


def assemble(
    name: str, provenance: Provenance, kv_bytes: KvBytes, measurement: Measurement, duration_s: float
) -> tuple[Profile, str]:
    """Fit ``measurement`` and make the profile and the text of its file."""
    runs = [[s for s in measurement.samples if (s.session > 0) == later] for later in (False, True)]
    first, again = (point_medians(samples, provenance.clock) for samples in runs)
    medians = pooled_medians(measurement.samples, provenance.clock)
    prefill, decode = make_table(medians, "prefill"), make_table(medians, "decode")
    drift = make_drift(measurement.samples, provenance.clock)
    fitted = fit_composition(medians, prefill, decode)
    repeated = fit_repeated(medians, decode, measurement.samples)
    samples = [sample for sample in measurement.samples if not sample.num_repeats]
    no_cache = fit_no_cache(samples, provenance.clock)
    made = provenance.model_copy(
        update={
            "duration_s": round(duration_s, 1),
            "notes": tuple(measurement.notes),
            "gpu_clocks": measurement.gpu_clocks,
        }
    )
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "provenance": made.model_dump(mode="json"),
        "held_out": held_out_error(medians, again, first).model_dump(mode="json"),
        "validity": make_validity(prefill, decode).model_dump(mode="json"),
        "kv_bytes_per_token": kv_bytes.model_dump(mode="json"),
        "batch_curve": make_batch_curve(decode).model_dump(mode="json"),
        "prefill": prefill.model_dump(mode="json"),
        "decode": decode.model_dump(mode="json"),
        "noise": make_noise(samples, provenance.clock).model_dump(mode="json"),
        "drift": drift.model_dump(mode="json") if drift else None,
        "mixed": fitted.mixed.model_dump(mode="json") if fitted.mixed else None,
        "one_mask": fitted.one_mask,
        "repeated": _with_samples(repeated) if repeated else None,
        "no_cache": no_cache.model_dump(mode="json") if no_cache else None,
        "samples": [sample.model_dump(mode="json", exclude_defaults=True) for sample in samples],
    }
    add_intervals(content, name)
    content["digest"] = content_digest(content)
    return parse_profile(content, name), layout(content) + "\n"


def _with_samples(repeated: RepeatedSteps) -> dict[str, Any]:
    samples = [sample.model_dump(mode="json", exclude_defaults=True) for sample in repeated.samples]
    return repeated.model_dump(mode="json") | {"samples": samples}


def layout(value: Any, depth: int = 0) -> str:  # noqa: ANN401 - any JSON
    """JSON with one line per sample or table row, so that files are short and differences readable."""
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and depth < 2 and value:
        items = [f"{pad}{json.dumps(key)}: {layout(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{end}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(pad + json.dumps(item) for item in value) + f"\n{end}]"
    return json.dumps(value)
