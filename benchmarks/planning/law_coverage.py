"""How often does the interval of a predicted loss contain the true loss?

The runs of a ladder are sampled from a known law of loss, each with a random error, as if from
another seed. A law is fitted to these runs, and the bootstrap gives an interval, as in
``action=plan study=``. The coverage is the fraction of intervals that contain the true loss: of
the ladder's largest run, which is held out, and of a run with a hundred times its FLOPs. 90 %
is the nominal coverage. The default study is the shipped ladder; the known law is typical of
miniatures.

    python -m benchmarks.planning.law_coverage [STUDY]
"""

import json
import math
from collections.abc import Sequence
from operator import methodcaller

import numpy as np

from benchmarks.entry import run_script
from benchmarks.results_store import RESULTS, ResultRow, result_context, save_tree
from command.study.ladder_points import TOTAL
from command.study.request import read_study_request
from command.study.schema import PARAMETERS, LadderStudy
from components.errors import RecipeError
from components.scaling.fit import LEVEL, compute_range, drawn_laws, fit_law
from components.scaling.law import Law, RunLosses

RESULT = RESULTS / "law_coverage.json"
TRUE_LAW = Law(E=1.2, A=25.0, B=130.0, alpha=0.32, beta=0.36, objective=0.0)
NOISE = (0.002, 0.005, 0.01)  # standard deviation of a run's ln L
LADDERS, DRAWS, BEYOND = 40, 100, 100.0
Size = tuple[int, int]  # parameters and tokens of a run


def ladder_of(name: str) -> tuple[list[Size], Size]:
    """Return the sizes of a ladder's fitted runs, and of its largest held-out run.

    Raises:
        RecipeError: the study is not a ladder.
    """
    study = read_study_request([f"study={name}", "action=report"]).study
    if not isinstance(study, LadderStudy):
        raise RecipeError("study", f"{name} is not a ladder", "use ladder")
    rows = [(int(p[PARAMETERS]), int(p[TOTAL]), study.is_held_out(p)) for p in study.points]
    held_out = max(row[:2] for row in rows if row[2])
    return [row[:2] for row in rows if not row[2]], held_out


def measure_coverage(runs: Sequence[Size], largest: Size, noise: float) -> ResultRow:
    """Sample ladders with one noise; return the coverage of the intervals."""
    beyond = (largest[0] * math.sqrt(BEYOND), largest[1] * math.sqrt(BEYOND))
    targets = {"held_out": largest, "beyond": beyond}
    num_covered, widths = dict.fromkeys(targets, 0), {name: list[float]() for name in targets}
    num_laws = 0
    for seed in range(LADDERS):
        errors = np.random.default_rng(seed).normal(0.0, noise, size=len(runs))
        losses: list[tuple[float, float, float]] = [
            (*run, TRUE_LAW.predict_loss(*run) * math.exp(error))
            for run, error in zip(runs, errors, strict=True)
        ]
        fitted = RunLosses.from_rows(losses)
        try:
            law = fit_law(fitted)
            laws = drawn_laws(fitted, law, draws=DRAWS)
        except RecipeError:
            continue  # without a law there is no interval
        num_laws += 1
        for name, target in targets.items():
            interval = compute_range(law, laws, methodcaller("predict_loss", *target))
            truth = TRUE_LAW.predict_loss(*target)
            num_covered[name] += interval.low <= truth <= interval.high
            widths[name].append((interval.high - interval.low) / truth)
    return {
        "noise": noise,
        "ladders": num_laws,
        "failed_fits": LADDERS - num_laws,
        **{f"{name}_coverage": num_covered[name] / max(num_laws, 1) for name in targets},
        **{f"{name}_width": float(np.median(widths[name])) for name in targets},
    }


def main(words: Sequence[str]) -> None:
    """Measure the coverage at each noise, and save it."""
    name = words[0] if words else "ladder"
    runs, largest = ladder_of(name)
    rows = [measure_coverage(runs, largest, noise) for noise in NOISE]
    context = result_context(
        peer=f"the known law; the nominal coverage is {LEVEL:.0%}",
        convention="fraction of sampled ladders whose interval contains the true loss; noise: "
        "standard deviation of ln L of a run; widths: medians, relative to the true loss",
        shape={"study": name, "runs": len(runs), "draws": DRAWS, "beyond_flops": BEYOND},
        packages=("numpy", "scipy"),
    )
    save_tree(RESULT, context | {"rows": rows})
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    run_script(main, max_words=1)
