"""The nodes of a job before its ranks start: gather what they say, choose among the good ones.

A job's script runs ``python -m cluster.preflight RUN`` while each node looks at itself; the
status is 1 if too few are good. On nodes that a user already has, tasks are started from here.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cluster.clients import scheduler_for
from cluster.records import Jobs, tell
from cluster.scheduler import JobPlace
from components.child_process import python_environment
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Site
from components.errors import RecipeError
from components.preflight import verdict
from components.preflight.node import hub
from components.run.event_log import job_name
from components.run.folder import RunFolder
from components.terminal import say

_INSIDE = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID"}
# Slurm sets them for a script and its steps; `salloc` does not for a shell on a login node.
_ON_A_NODE = {"SLURMD_NODENAME", "SLURM_PROCID"}
_SECONDS_TO_END = 5.0


def look_at_nodes(run: Path, seen: Mapping[str, str]) -> int:
    """Gather at this node what the job's nodes say; note it and list the nodes for the ranks.

    As many good ones are taken as there are ranks for, and listed in the job's order, by which
    launchers number ranks. The job's nodes are those that `cluster.begin` recorded: in an image
    there is no scheduler.
    """
    folder = RunFolder(run)
    recipe = read_recipe(folder.recipe)
    chain = Jobs(folder).chain()
    nodes = chain.newest_of(job_name(seen)).nodes
    hosts = {node.partition(".")[0]: node for node in nodes}
    with hub(int(seen["MASTER_PORT"])) as gathering:
        found = gathering.gather(recipe, list(hosts), needed=recipe.cluster.nodes)
    verdict.write_verdict(folder, found)
    # An avoided node that the scheduler gave all the same is the last to be taken.
    avoided = {node.partition(".")[0] for node in chain.avoided}
    taken = sorted(found.good, key=lambda name: name in avoided)[: found.needed]
    chosen = (hosts[name] for name in found.good if name in taken)
    verdict.list_hosts(folder, verdict.CHOSEN, chosen)
    reasons = list(found.reasons())
    bad = {one.node: [each.check for each in one.bad] for one in found.nodes if one.bad}
    cause = "; ".join(reasons) or "all nodes are good"
    evidence = {"nodes": len(found.nodes), "needed": found.needed, "excluded": bad}
    retry = recipe.checkpoint.retry_seconds  # the job has just begun, and may wait for room
    tell(folder, "preflight", cause, evidence, seconds=found.seconds, retry_seconds=retry)
    for reason in reasons:
        say(f"preflight: {reason}")
    said = f"{len(found.good)} of {len(nodes)} nodes are good, {found.needed} are needed"
    say(f"preflight: {said}, after {found.seconds:.1f} s")
    return 0 if found.holds else 1


def is_inside(recipe: Recipe, seen: Mapping[str, str]) -> bool:
    """Return whether this process belongs to a job of the cluster's scheduler."""
    return _INSIDE.get(recipe.cluster.scheduler, "") in seen


def look_at_allocation(
    recipe: Recipe, folder: RunFolder, python: str
) -> verdict.PreflightVerdict:
    """Start a task on each node, gather what they say, and end those that are left.

    Raises:
        RecipeError: the launcher is not found, or this process is on none of the job's nodes,
            which report to the first of them.
    """
    if recipe.cluster.scheduler == "slurm" and not _ON_A_NODE & os.environ.keys():
        raise RecipeError(
            "cluster.scheduler",
            f"job {os.environ['SLURM_JOB_ID']} is yours, but this shell is on none of its "
            "nodes, which report to the first of them",
            "sbatch --wait --wrap='python run.py ... action=preflight' with the same options",
        )
    site, scheduler = recipe.cluster.site, scheduler_for(recipe.cluster)
    assert isinstance(site, Site)
    place = scheduler.place(os.environ)
    names = [name.partition(".")[0] for name in place.nodes]
    hosts = verdict.list_hosts(folder, verdict.HOSTS, place.nodes)
    each = scheduler.on_each(hosts, len(names), site.launch)
    words = [*each, python, "-m", "components.preflight", str(folder.path)]
    with hub(0) as gathering:
        environment = _environment(site, place, gathering.port)
        try:
            process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            problem = f"{words[0]} is not found, though this is a job"
            remedy = "load the site's modules"
            raise RecipeError("cluster.scheduler", problem, remedy) from None
        try:
            return gathering.gather(recipe, names, needed=min(recipe.cluster.nodes, len(names)))
        finally:
            # Tasks that have reported may end by themselves: a launcher calls others killed.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            process.terminate()
            process.wait()


def _environment(site: Site, place: JobPlace, port: int) -> dict[str, str]:
    own = {name: os.path.expandvars(one.value) for name, one in site.environment.items()}
    address = {"MASTER_ADDR": f"{place.nodes[0]}{site.host_suffix}", "MASTER_PORT": str(port)}
    return python_environment(os.environ | own | address)


if __name__ == "__main__":
    sys.exit(look_at_nodes(Path(sys.argv[1]), os.environ))
