"""Predict time and memory of our steps without a GPU, by dry run and by plan.

    python -m benchmarks.gpu.predict cluster=NAME [case=NAME ...]

The predictions are in `benchmarks/results/gpu/predicted.json`, from which `benchmarks.gpu.page`
adds them to the measurements. A case takes half a minute on one core.
"""

from benchmarks.entry import run_script
from benchmarks.gpu.cases import GpuCase, ResultFields, read_cases
from benchmarks.gpu.drive import print_line
from benchmarks.results_store import RESULTS, read_tree, save_tree
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun.rank_roles import rehearse_roles
from components.errors import RecipeError
from components.planner.plan import plan_recipe

FILE = RESULTS / "gpu" / "predicted.json"
STEPS = "benchmarks.gpu.steps.measure_steps"


def is_ours(case: GpuCase) -> bool:
    """Return whether a case measures only our own steps."""
    return case.runs == STEPS and "variant" not in case.settings


def predict_case(case: GpuCase, cluster: str) -> ResultFields:
    """Plan and rehearse one case; the plan's memory includes margins."""
    recipe = compose_recipe(read_point([*case.settings["words"], f"cluster={cluster}"]))
    plan = plan_recipe(recipe)
    (role,) = rehearse_roles(recipe, lambda _: None).values()
    return {
        "words": case.settings["words"],
        "cluster": cluster,
        "dryrun_tensor_bytes": max(peak["bytes"] for peak in role["peaks"].values()),
        "plan_peak_bytes": round(plan.memory.fullest_rank_bytes),
        "plan_verdict": plan.memory.memory_verdict,
        "plan_step_seconds": plan.time.total_seconds if plan.time else None,
    }


def main(words: list[str]) -> int:
    """Predict the named cases, or all cases, and save each prediction."""
    pairs = [word.partition("=")[::2] for word in words]
    clusters = [value for key, value in pairs if key == "cluster"]
    if not clusters:
        raise RecipeError("cluster", "no cluster profile is given", "add cluster=NAME")
    selected = [value for key, value in pairs if key == "case"]
    predictions = read_tree(FILE)
    for case in read_cases():
        if is_ours(case) and (case.name in selected or not selected):
            predictions[case.name] = prediction = predict_case(case, clusters[0])
            save_tree(FILE, predictions)
            print_line(f"{case.name}: {prediction['dryrun_tensor_bytes'] / 2**30:.1f} GiB")
    return 0


if __name__ == "__main__":
    run_script(main, min_words=1)
