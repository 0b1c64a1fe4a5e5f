"""Errors of the planner by class: machine, and dense layers or experts.

The plans use the shipped constants of our own engine, as a user's plan does, and the switches
of the engine that was measured (``benchmarks/data/engines.yaml``). With ``left_out``, also fit
the constants of time to the rows of a machine (``action=plan calibrate``) without one source,
and predict the rows of that source. The H100 campaign has one source;
`benchmarks.planning.planner_accuracy` has its held-out nodes. With ``write``, the errors become
those of plans (``components/planner/accuracy.yaml``).

    python -m benchmarks.planning.error_classes [left_out] [write]
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.entry import run_script
from benchmarks.planning.measured import read_rows
from benchmarks.planning.planner_accuracy import DATA, TABLE, group_rows, is_timed
from benchmarks.planning.planner_blind import read_hardware, read_megatron, read_tuning
from benchmarks.planning.public_steps import PublicStep, read_public_steps
from components.planner.accuracy import ACCURACY, Accuracy, classify_job
from components.planner.calibration import FEWEST, SPEED, CalibrationStep, fit_speed
from components.planner.memory import plan_memory
from components.planner.software import OURS, SoftwareModel, read_software, replace_constants

HEAD = """# Planned over measured seconds of steps (benchmarks/data), written by
# `python -m benchmarks.planning.error_classes write`. No machine: all but the fitted.
"""
MOST_FITTED = 40  # about so many rows of a machine are fitted, for time


def main(words: Sequence[str]) -> None:
    """Print the errors by class as a JSON object, with ``left_out`` of left-out sources too."""
    rows = read_all_rows()
    figures: dict[str, object] = {"classes": compare_classes(rows)}
    if "left_out" in words:
        figures["left_out"] = compare_left_out(rows)
    if "write" in words:
        tree = [accuracy.model_dump() for accuracy in measure_accuracy(rows)]
        text = yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=120)
        ACCURACY.write_text(HEAD + text, "utf-8")
    print(json.dumps(figures, indent=1))


def read_all_rows() -> list[PublicStep]:
    """Read the measured rows of all machines, also rows that went out of memory."""
    published = yaml.safe_load((DATA / "published_steps.yaml").read_text("utf-8"))
    tuning, megatron = published["tuning"]["cluster"], published["megatron"]["cluster"]
    campaign = yaml.safe_load(TABLE.with_suffix(".yaml").read_text("utf-8"))
    rows = [*read_public_steps()]
    rows += [
        PublicStep(
            source="BLOOM, tuning",
            machine=tuning,
            engine="Megatron-DeepSpeed",
            job=job,
            seconds=seconds,
        )
        for _, job, seconds in read_tuning()
    ]
    rows += [
        PublicStep(
            source="Megatron-LM",
            machine=megatron,
            engine="Megatron-LM",
            job=job,
            seconds=seconds,
        )
        for _, job, seconds in read_megatron(published["megatron"]["rows"])
    ]
    rows += [
        PublicStep(
            source="playbook",
            machine=Path(campaign["profile"]).stem,
            engine="nanotron",
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


def measure_accuracy(rows: Iterable[PublicStep]) -> list[Accuracy]:
    """Return the errors of each class: by machine and nodes, then those of other machines."""
    campaign = yaml.safe_load(TABLE.with_suffix(".yaml").read_text("utf-8"))
    fitted = Path(campaign["profile"]).stem
    timed, classes = [row for row in rows if row.ran], list[Accuracy]()
    for (machine, layers, nodes), group in group_rows(timed, _class_of).items():
        classes.append(_measure_class(group, machine=machine, layers=layers, nodes=nodes))
    others = [row for row in timed if row.machine != fitted]
    for layers, group in group_rows(others, lambda row: classify_job(row.job)[0]).items():
        classes.append(_measure_class(group, machine=None, layers=layers, nodes="any"))
    return classes


def _class_of(row: PublicStep) -> tuple[str, str, str]:
    return row.machine, *classify_job(row.job)


def _measure_class(rows: Sequence[PublicStep], **names: Any) -> Accuracy:
    ratios = _ratios(rows, read_software(OURS))
    return Accuracy(
        **names,
        rows=len(rows),
        median_error=round(float(np.median(abs(ratios - 1))), 3),
        p90_factor=round(float(np.quantile(np.maximum(ratios, 1 / ratios), 0.9)), 2),
    )


def _ratios(rows: Iterable[PublicStep], software: SoftwareModel) -> NDArray[np.float64]:
    """Return planned over measured seconds of the rows that ran."""
    return np.array([
        row.plan_seconds(read_hardware(row.machine), software.speed) / row.seconds
        for row in rows
        if row.ran
    ])


def _time_errors(rows: Iterable[PublicStep], software: SoftwareModel) -> dict[str, object]:
    """Return median and 90th percentile of the error, and the median with its sign."""
    deviations = _ratios(rows, software) - 1
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
    run_script(main, max_words=2)
