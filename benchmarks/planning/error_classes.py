"""Errors of the planner by class: machine, and dense layers or experts.

The plans use the shipped constants of our own engine, as a user's plan does. All rows were
measured with other programs. With ``left_out``, also fit the constants of time to the rows of a
machine (``action=plan calibrate``) without one source, and predict the rows of that source. The
H100 campaign has one source; `benchmarks.planning.planner_accuracy` has its held-out nodes.

    python -m benchmarks.planning.error_classes [left_out]
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
import yaml

from benchmarks.entry import run_script
from benchmarks.planning.measured import read_rows
from benchmarks.planning.planner_accuracy import DATA, TABLE, group_rows, is_timed
from benchmarks.planning.planner_blind import read_hardware, read_megatron, read_tuning
from benchmarks.planning.public_steps import PublicStep, read_public_steps
from components.planner.calibration import FEWEST, SPEED, CalibrationStep, fit_speed
from components.planner.memory import plan_memory
from components.planner.software import OURS, SoftwareModel, read_software, replace_constants
from components.planner.time import plan_time

MOST_FITTED = 40  # about so many rows of a machine are fitted, for time


def main(words: Sequence[str]) -> None:
    """Print the errors by class as a JSON object, with ``left_out`` of left-out sources too."""
    rows = read_all_rows()
    figures: dict[str, object] = {"classes": compare_classes(rows)}
    if "left_out" in words:
        figures["left_out"] = compare_left_out(rows)
    print(json.dumps(figures, indent=1))


def read_all_rows() -> list[PublicStep]:
    """Read the measured rows of all machines, also rows that went out of memory."""
    published = yaml.safe_load((DATA / "published_steps.yaml").read_text("utf-8"))
    tuning, megatron = published["tuning"]["cluster"], published["megatron"]["cluster"]
    campaign = yaml.safe_load(TABLE.with_suffix(".yaml").read_text("utf-8"))
    rows = [*read_public_steps()]
    rows += [
        PublicStep(source="BLOOM, tuning", machine=tuning, job=job, seconds=seconds)
        for _, job, seconds in read_tuning()
    ]
    rows += [
        PublicStep(source="Megatron-LM", machine=megatron, job=job, seconds=seconds)
        for _, job, seconds in read_megatron(published["megatron"]["rows"])
    ]
    rows += [
        PublicStep(
            source="playbook",
            machine=Path(campaign["profile"]).stem,
            job=row.job,
            seconds=row.seconds,
        )
        for row in read_rows(TABLE)
        if is_timed(row) or not row.ran
    ]
    return rows


def compare_classes(rows: Iterable[PublicStep]) -> dict[str, dict[str, object]]:
    """Return the errors of time and the correct verdicts of memory of each class."""
    software = read_software(OURS)
    return {
        name: {**_time_errors(group, software), "fits": _verdicts(group, software)}
        for name, group in group_rows(rows, attrgetter("error_class")).items()
    }


def compare_left_out(rows: Iterable[PublicStep]) -> dict[str, dict[str, object]]:
    """Return the errors of each source with constants fitted to the other sources."""
    shipped, errors = read_software(OURS), dict[str, dict[str, object]]()
    ran = (row for row in rows if row.ran)
    for name, group in group_rows(ran, attrgetter("error_class")).items():
        sources = group_rows(group, attrgetter("source"))
        for source, unseen in sources.items() if len(sources) > 1 else ():
            known = [row for row in group if row.source != source]
            if len({row.job for row in known}) < FEWEST * len(SPEED):
                continue
            steps = [
                CalibrationStep(job=row.job, seconds=row.seconds, peak_bytes=None)
                for row in known[:: max(len(known) // MOST_FITTED, 1)]
            ]
            fit = fit_speed(steps, read_hardware(known[0].machine), shipped)
            fitted = replace_constants(shipped, fit.constants, {})
            errors[f"{name}: {source}"] = {
                "shipped": _time_errors(unseen, shipped),
                "fitted": _time_errors(unseen, fitted),
            }
    return errors


def _time_errors(rows: Iterable[PublicStep], software: SoftwareModel) -> dict[str, object]:
    """Return median and 90th percentile of the error, and the median with its sign."""
    deviations = np.array([
        plan_time(row.job, read_hardware(row.machine), software.speed).total_seconds
        / row.seconds
        - 1
        for row in rows
        if row.ran
    ])
    middle, ninth = np.quantile(abs(deviations), [0.5, 0.9])
    return {
        "n": len(deviations),
        "median_error": float(middle),
        "p90_error": float(ninth),
        "median_deviation": float(np.median(deviations)),
    }


def _verdicts(rows: Sequence[PublicStep], software: SoftwareModel) -> dict[str, int]:
    """Count runs by verdict and outcome; ``tight`` may both run and go out of memory."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        memory = plan_memory(row.job, read_hardware(row.machine), software.memory)
        counts[f"{memory.memory_verdict}, {'ran' if row.ran else 'out of memory'}"] += 1
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    run_script(main, max_words=1)
