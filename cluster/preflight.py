"""Before the ranks start: ``python -m cluster.preflight RUN``, while each node looks at itself.

It gathers what they say, notes it and lists in the run's folder the nodes to start ranks on.
Its status is 1 if too few are good.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cluster.records import tell_preflight
from cluster.scheduler import Scheduler
from cluster.schedulers import scheduler_of
from components.config.schema.recipe import Recipe, read_recipe
from components.preflight.hub import hub
from components.preflight.verdict import CHOSEN, PreflightVerdict, list_hosts, write_verdict
from components.run.folder import RunFolder
from components.terminal import say


def look_at_nodes(run: Path, seen: Mapping[str, str]) -> int:
    """Gather at this node what the job's nodes say, and choose among them."""
    folder = RunFolder(run)
    recipe = read_recipe(folder.recipe)
    scheduler = scheduler_of(recipe.cluster)
    nodes = scheduler.place(seen).nodes
    hosts = {node.partition(".")[0]: node for node in nodes}
    with hub(int(seen["MASTER_PORT"])) as gathering:
        verdict = gathering.gather(recipe, list(hosts), needed=recipe.cluster.nodes)
    write_verdict(folder, verdict)
    list_hosts(folder, CHOSEN, (hosts[name] for name in choose(recipe, scheduler, verdict)))
    tell_preflight(folder, verdict)
    for reason in verdict.reasons():
        say(f"preflight: {reason}")
    said = f"{len(verdict.good)} of {len(nodes)} nodes are good, {verdict.needed} are needed"
    say(f"preflight: {said}, after {verdict.seconds:.1f} s")
    return 0 if verdict.holds else 1


def choose(recipe: Recipe, scheduler: Scheduler, verdict: PreflightVerdict) -> tuple[str, ...]:
    """Take as many good nodes as there are ranks for, or all where agents can use others."""
    wait = recipe.watchdog.restarts and scheduler.outlives_nodes
    return verdict.good if wait else verdict.good[: verdict.needed]


if __name__ == "__main__":
    sys.exit(look_at_nodes(Path(sys.argv[1]), os.environ))
