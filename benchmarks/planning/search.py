"""How long does a search over layouts take, and how good is its first choice?

Seconds are of one core, on 1,024 nodes with the batch grown as in weak scaling, against five.
The regret is that of `planner_accuracy`, on node counts that no constant has seen.

    python -m benchmarks.planning.search NAME=GLOBAL_BATCH_TOKENS ...
"""

import json
from collections.abc import Mapping, Sequence
from time import process_time

from benchmarks.entry import enter
from benchmarks.planning.measured import MeasuredLayout, read_rows
from benchmarks.planning.planner_accuracy import TABLE, is_timed, read_campaign, regret
from benchmarks.recipes import recipe_tree
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.planner.memory import plan_memory
from components.planner.search import penalise_tight, search_layouts
from components.planner.time import plan_time

LIMIT_SECONDS, NODES = 5.0, 1_024


def main(words: Sequence[str]) -> int:
    """Print one JSON object."""
    batches = {name: int(batch) for name, _, batch in (word.partition("=") for word in words)}
    tree = {"searches": searches(batches), "first_choice": first_choice()}
    print(json.dumps(tree, indent=1))
    return 0


def searches(batches: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Time a search of each recipe at home with its large batch, without composing it."""
    found = {}
    for name, batch in batches.items():
        recipe = bare(name, batch)
        begun = process_time()
        search = search_layouts(
            recipe, ranks=NODES * recipe.cluster.devices_per_node, fixed=frozenset()
        )
        seconds = process_time() - begun
        found[name] = {
            "seconds": seconds,
            "of_limit": seconds / LIMIT_SECONDS,
            "considered": search.considered,
            "legal": search.legal,
            "fitting": search.fitting,
        }
    return found


def bare(name: str, batch: int) -> Recipe:
    """Compose a recipe whose batch and tokens are those of the large run."""
    words = [f"recipe={name}", f"cluster={recipe_tree(name)['home']}"]
    tokens = compose_recipe(read_point(words)).budget.total_tokens
    words += [
        f"budget.global_batch_tokens={batch}",
        f"budget.total_tokens={max(tokens, batch)}",
    ]
    return compose_recipe(read_point(words)).model_copy()


def first_choice() -> dict[str, object]:
    """Take the regret of the search's order, and what its caution with memory adds to it."""
    hardware, software, fitted = read_campaign()

    def cost(row: MeasuredLayout) -> float:
        verdict = plan_memory(row.job, hardware, software.memory).verdict
        return penalise_tight(seconds(row), verdict)

    def seconds(row: MeasuredLayout) -> float:
        verdict = plan_memory(row.job, hardware, software.memory).verdict
        fits = verdict != "does_not_fit"
        return plan_time(row.job, hardware, software.speed).total if fits else float("inf")

    rows = read_rows(TABLE)
    unseen = [r for r in rows if is_timed(r) and r.nodes not in fitted]
    by_nodes = {
        str(n): regret([row for row in unseen if row.nodes == n], cost)
        for n in sorted({row.nodes for row in unseen})
    }
    return {**regret(unseen, cost), "by_nodes": by_nodes, "by_time": regret(unseen, seconds)}


if __name__ == "__main__":
    enter(main)
