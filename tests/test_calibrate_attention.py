"""Attention kernels compared in one run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.attention import comparison, kernels_of  # noqa: E402 - after the skips
from calibrate.command import calibrate  # noqa: E402
from calibrate.errors import CalibrationError  # noqa: E402
from calibrate.options import CalibrateOptions  # noqa: E402
from simserve.step_time.profile_schema import load_profile  # noqa: E402
from tests.profile_builders import make_profile  # noqa: E402


def test_two_kernels_give_two_profiles_and_a_table(tmp_path: Path) -> None:
    """Each profile names its kernel and is as whole as one measured alone; the table says how they compare; nothing
    else is left behind."""
    printed = io.StringIO()
    limits = {"max_context": 64, "max_batch_size": 8, "max_prefill_tokens": 64, "repeats": 1}
    options = CalibrateOptions(
        model="tiny", device="cpu", attn="sdpa,eager", grid="quick", out=tmp_path / "p.json", command="test", **limits
    )
    first = calibrate(options, Console(file=printed, width=200))
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == ["p-eager.json", "p-sdpa.json"] and first == paths[1]
    eager, sdpa = map(load_profile, paths)
    assert (eager.provenance.attention, sdpa.provenance.attention) == ("eager", "sdpa")
    assert eager.held_out.mixed is not None and eager.held_out.mixed.num_points >= 1
    assert {s.shape for s in eager.samples} == {s.shape for s in sdpa.samples}
    assert "measured in turn with sdpa, round by round" in json.loads(paths[0].read_text())["provenance"]["notes"]
    assert "eager / sdpa" in printed.getvalue()


def test_the_table_compares_with_the_first() -> None:
    """A kernel twice as slow everywhere is 2.00× in every row, one for each fitted point."""
    fast, slow = make_profile(), make_profile(lambda r, c: 2e-3 * r, lambda r, c: 2e-3 * r)
    base = make_profile(lambda r, c: 1e-3 * r, lambda r, c: 1e-3 * r)
    table = comparison([base, slow])
    assert set(table.columns[-1].cells) == {"2.00×"}
    assert table.row_count == len([s for s in fast.samples if not s.held_out])


@pytest.mark.parametrize("attn", ["sdpa,", "sdpa,sdpa", ","])
def test_kernels_are_named_once(attn: str) -> None:
    """An empty or repeated name is a slip, not a comparison."""
    with pytest.raises(CalibrationError, match="must name each kernel once"):
        kernels_of(attn)
