"""Predict, without a GPU, what the cases of our own steps take: by dry run and by the plan.

    python -m benchmarks.gpu.predict cluster=NAME [case=NAME ...]

`benchmarks/results/gpu/predicted.json` has it for `benchmarks.gpu.page` to set beside what was
measured. Half a minute a case on one core.
"""

import json
from typing import Any

from benchmarks.entry import enter
from benchmarks.gpu.cases import GpuCase, read_cases
from benchmarks.gpu.drive import say
from benchmarks.kept import RESULTS
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun.roles import rehearse_roles
from components.errors import RecipeError
from components.planner.plan import plan_recipe

FILE = RESULTS / "gpu" / "predicted.json"
STEPS = "benchmarks.gpu.steps.alone"
Found = dict[str, Any]


def is_ours(case: GpuCase) -> bool:
    """Return whether a case takes steps of ours, by themselves."""
    return case.runs == STEPS and "way" not in case.settings


def predict(case: GpuCase, cluster: str) -> Found:
    """Plan and rehearse one case: the peak of its tensors, and the plan's with margins."""
    recipe = compose_recipe(read_point([*case.settings["words"], f"cluster={cluster}"]))
    plan = plan_recipe(recipe)
    (role,) = rehearse_roles(recipe, lambda _: None).values()
    return {
        "words": case.settings["words"],
        "cluster": cluster,
        "dryrun_tensor_bytes": max(one["bytes"] for one in role["peaks"].values()),
        "plan_peak_bytes": round(plan.memory.peak),
        "plan_verdict": plan.memory.verdict,
        "plan_step_seconds": plan.time.total if plan.time else None,
    }


def main(words: list[str]) -> int:
    """Predict each case, or those that are named, and keep it at once."""
    pairs = [word.partition("=")[::2] for word in words]
    clusters = [value for key, value in pairs if key == "cluster"]
    if not clusters:
        raise RecipeError("cluster", "no profile is named", "write cluster=NAME")
    named = [value for key, value in pairs if key == "case"]
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for case in read_cases():
        if is_ours(case) and (case.name in named or not named):
            known[case.name] = predict(case, clusters[0])
            FILE.parent.mkdir(parents=True, exist_ok=True)
            FILE.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
            say(f"{case.name}: {known[case.name]['dryrun_tensor_bytes'] / 2**30:.1f} GiB")
    return 0


if __name__ == "__main__":
    enter(main, least=1)
