"""How long does a search over layouts take, and how good is its first choice?

A search runs on one core, for 1,024 nodes with the batch of weak scaling; the limit is five
seconds. The regret is defined in `planner_accuracy`, on node counts not used for fitting.

    python -m benchmarks.planning.search NAME=GLOBAL_BATCH_TOKENS ...
"""

import json
from collections.abc import Mapping, Sequence
from time import process_time

from benchmarks.entry import run_script
from benchmarks.planning.measured import MeasuredLayout, read_rows
from benchmarks.planning.planner_accuracy import TABLE, compute_regret, is_timed, read_campaign
from benchmarks.recipes import recipe_tree
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.planner.memory import plan_memory
from components.planner.search import penalise_tight, search_layouts
from components.planner.time import plan_time

LIMIT_SECONDS, NODES = 5.0, 1_024


def main(words: Sequence[str]) -> int:
    """Print the figures as a JSON object."""
    batches = {name: int(batch) for name, _, batch in (word.partition("=") for word in words)}
    tree = {"searches": time_searches(batches), "first_choice": first_choice_regret()}
    print(json.dumps(tree, indent=1))
    return 0


def time_searches(batches: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Time a search per recipe on its reference cluster, without the composition."""
    times = {}
    for name, batch in batches.items():
        recipe = compose_large_batch(name, batch)
        start = process_time()
        search = search_layouts(
            recipe, ranks=NODES * recipe.cluster.devices_per_node, fixed=frozenset()
        )
        seconds = process_time() - start
        times[name] = {
            "seconds": seconds,
            "of_limit": seconds / LIMIT_SECONDS,
            "considered": search.considered,
            "legal": search.legal,
            "fitting": search.fitting,
        }
    return times


def compose_large_batch(name: str, batch: int) -> Recipe:
    """Compose a recipe with the batch and tokens of the large run."""
    words = [f"recipe={name}", f"cluster={recipe_tree(name)['reference_cluster']}"]
    tokens = compose_recipe(read_point(words)).budget.total_tokens
    words.append(f"budget.global_batch_tokens={batch}")
    words.append(f"budget.total_tokens={max(tokens, batch)}")
    return compose_recipe(read_point(words))


def first_choice_regret() -> dict[str, object]:
    """Return the regret of the search's order, and of its order by time alone."""
    hardware, software, fitted = read_campaign()

    def cost(row: MeasuredLayout) -> float:
        verdict = plan_memory(row.job, hardware, software.memory).memory_verdict
        return penalise_tight(seconds(row), verdict)

    def seconds(row: MeasuredLayout) -> float:
        fits = plan_memory(row.job, hardware, software.memory).is_within_limit
        return (
            plan_time(row.job, hardware, software.speed).total_seconds if fits else float("inf")
        )

    rows = read_rows(TABLE)
    held_out = [r for r in rows if is_timed(r) and r.nodes not in fitted]
    by_nodes = {
        str(n): compute_regret([row for row in held_out if row.nodes == n], cost)
        for n in sorted({row.nodes for row in held_out})
    }
    by_time = compute_regret(held_out, seconds)
    return {**compute_regret(held_out, cost), "by_nodes": by_nodes, "by_time": by_time}


if __name__ == "__main__":
    run_script(main)
