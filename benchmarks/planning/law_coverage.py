"""How often does the interval of a predicted loss hold the true one?

A law is planted and a ladder's fitted runs are drawn from it, each with an error of its own, as
other seeds would give; the law is fitted to them and the bootstrap's interval taken, as
``action=plan study=`` does. Counted is how often the interval holds the planted loss of the
ladder's largest run, which is held out, and that of a run of a hundred times its FLOPs: 90 %
would be right. The shipped ladder is the study unless one is named; the planted law is one of
miniatures.

    python -m benchmarks.planning.law_coverage [STUDY]
"""

import json
import math
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, Row, circumstances
from command.study.ladder_points import TOTAL
from command.study.request import ask
from command.study.schema import PARAMETERS, LadderStudy
from components.errors import RecipeError
from components.scaling.fit import LEVEL, drawn_laws, fit_law, interval
from components.scaling.law import Law, RunLosses

RESULT = RESULTS / "law_coverage.json"
PLANTED = Law(E=1.2, A=25.0, B=130.0, alpha=0.32, beta=0.36, objective=0.0)
NOISE = (0.002, 0.005, 0.01)  # standard deviation of a run's ln L
LADDERS, DRAWS, BEYOND = 40, 100, 100.0


def ladder_of(name: str) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Give parameters and tokens of a ladder's fitted runs, and of its largest held-out one.

    Raises:
        RecipeError: the study is no ladder.
    """
    study = ask([f"study={name}", "action=report"]).study
    if not isinstance(study, LadderStudy):
        raise RecipeError("study", f"{name} is no ladder", "write ladder")
    rows = [(int(p[PARAMETERS]), int(p[TOTAL]), study.is_held_out(p)) for p in study.points]
    held_out = max(row[:2] for row in rows if row[2])
    return [row[:2] for row in rows if not row[2]], held_out


def loss_at(target: tuple[float, float], law: Law) -> float:
    """Return the loss by a law of so many parameters and tokens."""
    return law.loss(*target)


def cover(runs: Sequence[tuple[int, int]], largest: tuple[int, int], noise: float) -> Row:
    """Draw ladders of one scatter; count the intervals that hold what was planted."""
    beyond = (largest[0] * math.sqrt(BEYOND), largest[1] * math.sqrt(BEYOND))
    targets = {"held_out": largest, "beyond": beyond}
    held, widths = dict.fromkeys(targets, 0), {name: list[float]() for name in targets}
    told = 0
    for seed in range(LADDERS):
        drawn = np.random.default_rng(seed).normal(0.0, noise, size=len(runs))
        losses: list[tuple[float, float, float]] = [
            (*run, PLANTED.loss(*run) * math.exp(error))
            for run, error in zip(runs, drawn, strict=True)
        ]
        fitted = RunLosses.of(losses)
        try:
            laws = drawn_laws(fitted, fit_law(fitted), draws=DRAWS)
        except RecipeError:
            continue  # no law, and so no interval that could be wrong
        told += 1
        for name, target in targets.items():
            found = interval(laws, partial(loss_at, target))
            truth = PLANTED.loss(*target)
            held[name] += found.low <= truth <= found.high
            widths[name].append((found.high - found.low) / truth)
    return {
        "noise": noise,
        "ladders": told,
        "told_no_law": LADDERS - told,
        **{f"{name}_coverage": held[name] / max(told, 1) for name in targets},
        **{f"{name}_width": float(np.median(widths[name])) for name in targets},
    }


def main(words: Sequence[str]) -> None:
    """Count at each scatter, and keep what was found."""
    name = words[0] if words else "ladder"
    runs, largest = ladder_of(name)
    rows = [cover(runs, largest, noise) for noise in NOISE]
    context = circumstances(
        peer=f"the planted law; {LEVEL:.0%} is asked for",
        convention="the part of drawn ladders whose interval holds the planted loss; noise: "
        "the standard deviation of ln L of a run; widths: medians, parts of the planted loss",
        shape={"study": name, "runs": len(runs), "draws": DRAWS, "beyond_flops": BEYOND},
        packages=("numpy", "scipy"),
    )
    RESULT.write_text(json.dumps(context | {"rows": rows}, indent=1) + "\n", "utf-8")
    sys.stdout.write(f"{json.dumps(rows, indent=1)}\n")


if __name__ == "__main__":
    enter(main, most=1)
