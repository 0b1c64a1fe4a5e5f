"""Preflight of a job's nodes: gather their reports and choose good nodes for the ranks.

A job script runs ``python -m cluster.preflight RUN`` while each node checks itself. The exit
status is 1 if too few nodes are good. In an existing allocation, this module also starts the
tasks on the nodes.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cluster.clients import scheduler_for
from cluster.records import Jobs, record_event
from cluster.scheduler import JobPlace, short_name
from components.child_process import python_environment
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Site
from components.errors import RecipeError
from components.preflight import verdict
from components.preflight.node import gather_reports, serve_store
from components.run.event_log import job_name
from components.run.folder import RunFolder
from components.terminal import log_line

_INSIDE = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID"}
# Slurm sets these for a job script and its steps, but not for a `salloc` shell on a login node.
_ON_A_NODE = {"SLURMD_NODENAME", "SLURM_PROCID"}
_SECONDS_TO_END = 5.0


def look_at_nodes(run: Path, seen: Mapping[str, str]) -> int:
    """Gather the nodes' reports, write the verdict and list the nodes for the ranks.

    The list contains as many good nodes as the ranks need, in the job's order, by which
    launchers number the ranks. The job's nodes are read from the record of `cluster.begin`,
    because an image has no scheduler commands. Return 1 if too few nodes are good.
    """
    folder = RunFolder(run)
    recipe = read_recipe(folder.recipe)
    chain = Jobs(folder).load_chain()
    nodes = chain.newest_of(job_name(seen)).nodes
    hosts = {short_name(node): node for node in nodes}
    with serve_store(int(seen["MASTER_PORT"])) as store:
        result = gather_reports(store, recipe, list(hosts), needed=recipe.cluster.nodes)
    verdict.write_verdict(folder, result)
    # Choose avoided nodes last if the scheduler allocated them anyway.
    avoided = set(map(short_name, chain.avoided))
    selected = sorted(result.good_nodes, key=lambda name: name in avoided)[: result.needed]
    chosen = (hosts[name] for name in result.good_nodes if name in selected)
    verdict.list_hosts(folder, verdict.CHOSEN, chosen)
    reasons = list(result.iter_reasons())
    bad = {
        node.node: [each.check for each in node.bad_findings]
        for node in result.nodes
        if node.bad_findings
    }
    cause = "; ".join(reasons) or "all nodes are good"
    evidence = {"nodes": len(result.nodes), "needed": result.needed, "excluded": bad}
    retry = recipe.checkpoint.retry_seconds  # enough time is left to wait for disk space
    record_event(
        folder, "preflight", cause, evidence, seconds=result.seconds, retry_seconds=retry
    )
    for reason in reasons:
        log_line(f"preflight: {reason}")
    counts = (
        f"{len(result.good_nodes)} of {len(nodes)} nodes are good, {result.needed} are needed"
    )
    log_line(f"preflight: {counts}, after {result.seconds:.1f} s")
    return 0 if result.has_enough_nodes else 1


def is_inside(recipe: Recipe, seen: Mapping[str, str]) -> bool:
    """Return whether this process runs in a job of the cluster's scheduler."""
    return _INSIDE.get(recipe.cluster.scheduler, "") in seen


def look_at_allocation(
    recipe: Recipe, folder: RunFolder, python: str
) -> verdict.PreflightVerdict:
    """Start a task on each node, gather the reports, and end the tasks that are left.

    The nodes report to the first node of the job, which must run this process.
    """
    if recipe.cluster.scheduler == "slurm" and not _ON_A_NODE & os.environ.keys():
        raise RecipeError(
            "cluster.scheduler",
            f"this shell is not on a node of job {os.environ['SLURM_JOB_ID']}, but the nodes "
            "report to the first node of the job",
            "sbatch --wait --wrap='python run.py ... action=preflight' with the same options",
        )
    site, scheduler = recipe.cluster.site, scheduler_for(recipe.cluster)
    assert isinstance(site, Site)
    place = scheduler.read_job_place(os.environ)
    names = [*map(short_name, place.nodes)]
    hosts = verdict.list_hosts(folder, verdict.HOSTS, place.nodes)
    prefix = scheduler.on_each(hosts, len(names), site.launch)
    words = [*prefix, python, "-m", "components.preflight", str(folder.path)]
    with serve_store(0) as store:
        environment = _environment(site, place, store.port)
        try:
            process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        except FileNotFoundError:
            problem = f"{words[0]} is not found in this job"
            remedy = "load the site's modules"
            raise RecipeError("cluster.scheduler", problem, remedy) from None
        try:
            return gather_reports(
                store, recipe, names, needed=min(recipe.cluster.nodes, len(names))
            )
        finally:
            # Let tasks that have reported end by themselves: launchers report killed tasks.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            process.terminate()
            process.wait()


def _environment(site: Site, place: JobPlace, port: int) -> dict[str, str]:
    own = {
        name: os.path.expandvars(variable.value) for name, variable in site.environment.items()
    }
    address = {"MASTER_ADDR": f"{place.nodes[0]}{site.host_suffix}", "MASTER_PORT": str(port)}
    return python_environment(os.environ | own | address)


if __name__ == "__main__":
    sys.exit(look_at_nodes(Path(sys.argv[1]), os.environ))
