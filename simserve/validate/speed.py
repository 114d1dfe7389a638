"""Whether the machine was as fast in the runs as in the calibration, by a fixed piece of work timed in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from simserve.recorded.run import RecordedRun
from simserve.scenario import ProfileStepTimeConfig, Scenario
from simserve.step_time.profile_schema import load_profile


def machine_notes(scenario: Scenario, runs: Sequence[RecordedRun]) -> Iterator[str]:
    """A sentence, where profile and runs both tell. The prediction is not corrected by it: what a machine does later
    was not known beforehand."""
    config = scenario.step_time
    taken = [run.reference_s for run in runs if run.reference_s is not None]
    if not isinstance(config, ProfileStepTimeConfig) or not taken:
        return
    before = load_profile(Path(scenario.locate(config.profile)), None).provenance.reference_s
    if before is None:
        return
    change = median(taken) / before - 1
    each = ", ".join(f"{seconds / before - 1:+.1%}" for seconds in taken).replace("-", "−").replace("%", " %")
    yield (
        f"a fixed piece of work took {100 * abs(change):.1f} % {'less' if change < 0 else 'more'} time beside the runs "
        f"than beside the calibration ({each}): the machine's own doing, and no figure here is corrected by it"
    )
