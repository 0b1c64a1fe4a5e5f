"""Nodes that a user already has: one task on each, started from the first of them."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cluster.scheduler import JobPlace
from cluster.schedulers import scheduler_of
from components.config.schema.cluster import Site
from components.config.schema.recipe import Recipe
from components.errors import RecipeError
from components.preflight.hub import hub
from components.preflight.verdict import HOSTS, PreflightVerdict, list_hosts
from components.run.folder import RunFolder

# Slurm sets them for a script and its steps; `salloc` does not for a shell on a login node.
_ON_A_NODE = {"SLURMD_NODENAME", "SLURM_PROCID"}
SECONDS_TO_END = 5.0
_INSIDE = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID"}


def is_inside(recipe: Recipe, seen: Mapping[str, str]) -> bool:
    """Whether this process belongs to a job of the cluster's scheduler."""
    return _INSIDE.get(recipe.cluster.scheduler, "") in seen


def look_at_allocation(recipe: Recipe, folder: RunFolder, python: str) -> PreflightVerdict:
    """Start a task a node, gather what they say, and end those that are left.

    Raises:
        RecipeError: the launcher is not found, or this process is on none of the job's nodes.
    """
    _check_on_a_node(recipe, os.environ)
    site, scheduler = recipe.cluster.site, scheduler_of(recipe.cluster)
    assert isinstance(site, Site)
    place = scheduler.place(os.environ)
    names = [name.partition(".")[0] for name in place.nodes]
    hosts = list_hosts(folder, HOSTS, place.nodes)
    each = scheduler.on_each(hosts, len(names), site.launch)
    words = [*each, python, "-m", "components.preflight", str(folder.path)]
    with hub(0) as gathering:
        process = _start(words, _environment(site, place, gathering.port))
        try:
            needed = min(recipe.cluster.nodes, len(names))
            return gathering.gather(recipe, names, needed=needed)
        finally:
            _let_end(process)
            process.terminate()
            process.wait()


def _check_on_a_node(recipe: Recipe, seen: Mapping[str, str]) -> None:
    """Refuse a login node: its nodes report to the first of them, and nobody listens there."""
    if recipe.cluster.scheduler == "slurm" and not _ON_A_NODE & seen.keys():
        raise RecipeError(
            "cluster.scheduler",
            f"job {seen['SLURM_JOB_ID']} is yours, but this shell is on none of its nodes, "
            "which report to the first of them",
            "sbatch --wait --wrap='python run.py ... action=preflight' with the same options",
        )


def _environment(site: Site, place: JobPlace, port: int) -> dict[str, str]:
    own = {name: os.path.expandvars(one.value) for name, one in site.environment.items()}
    where = {
        "MASTER_ADDR": f"{place.nodes[0]}{site.host_suffix}",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    return os.environ | own | where


def _let_end(process: subprocess.Popen[bytes]) -> None:
    """Give tasks that have reported the time to end: a launcher calls what it ends killed."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_END)


def _start(words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    except FileNotFoundError:
        problem = f"{words[0]} is not found, though this is a job"
        raise RecipeError("cluster.scheduler", problem, "load the site's modules") from None
