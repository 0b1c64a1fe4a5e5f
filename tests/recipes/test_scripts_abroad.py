"""Scripts of all recipes, at home and abroad: chains where a queue takes them, limits told.

Each recipe goes to its home and to one or two other profiles, each profile gets some of the
recipes: all pairs would be a thousand, of which neighbors tell the same.
"""

import re
import shutil
import subprocess
from functools import cache
from itertools import count
from math import gcd, lcm
from typing import Any

import pytest
import yaml

from cluster.job import JobSettings, render_job_script
from components.errors import RecipeError
from components.planner.queues import longest_queue, queue_remark, takes_runs, with_nodes
from tests.cluster.directives import read_directives
from tests.cluster.jobs import ROOT, job_of, recipe_of
from tests.recipes.compositions import RECIPES, at_home, home_of

PROFILES = {
    path.stem: tree
    for path in sorted((ROOT / "conf" / "cluster").glob("*.yaml"))
    if (tree := yaml.safe_load(path.read_text("utf-8")))["scheduler"] != "none"
}
SHELLCHECK = shutil.which("shellcheck")
QUICK = (
    "teuken7b-aurora", "gpt20b-frontier", "mula1b-jupiter", "mula1b-juwels",
    "bloom560m-jean_zay_h100", "gpt175b-jean_zay",
)  # fmt: skip
SHARE = 15
ABROAD = [
    (name, cluster)
    for number, name in enumerate(RECIPES)
    for place, cluster in enumerate(PROFILES)
    if (number + place) % SHARE == 0 or cluster == home_of(name) or f"{name}-{cluster}" in QUICK
]
NEAREST = re.compile(
    r"(cut to|raise to) ([\d,]+) \((\S+), [\d.]+ h\)|site\.queue=\S+, [\d.]+ h"
)


@cache
def words_for(name: str, cluster: str) -> tuple[str, ...]:
    """Fill whole nodes of the cluster: as many data ranks more, and a batch for them."""
    home = at_home(name)
    degrees, devices = home.parallelism, PROFILES[cluster]["devices_per_node"]
    ranks = home.cluster.ranks // degrees.data
    shard = 1 if degrees.data_shard == degrees.data else degrees.data_shard
    # A phase with longer sequences leaves fewer data ranks, over which weights lie in shards.
    contexts = [
        one.parallelism.get("context", 1) * one.parallelism.get("data_shard", shard)
        for one in home.phases.values()
    ]
    step = lcm(devices // gcd(devices, ranks), *contexts)
    data = next(data for data in count(degrees.data) if data % step == 0)
    if data == degrees.data:
        return (f"recipe={name}", f"cluster={cluster}")
    each = data * degrees.expert * degrees.microbatch_sequences
    each *= degrees.pipeline  # it needs as many microbatches
    budgets: dict[str, Any] = {"budget": home.budget}
    budgets |= {f"phases.{phase}.budget": one.budget for phase, one in home.phases.items()}
    batches = [
        f"{path}.global_batch_tokens={-(-one.global_batch_tokens // unit) * unit}"
        for path, one in budgets.items()
        if (unit := (one.sequence_length or home.budget.sequence_length) * each)
        and one.global_batch_tokens
    ]
    more = (f"parallelism.data={data}", *batches, "budget.ramp_up=none")
    return (f"recipe={name}", f"cluster={cluster}", *more)


def check_shell(script: str) -> None:
    """Let shellcheck read the script, where it is installed."""
    if SHELLCHECK is None:
        return
    # SC1091: the environment that a script activates is on another machine.
    command = [SHELLCHECK, "--exclude=SC1091", "-"]
    done = subprocess.run(command, input=script, text=True, capture_output=True)
    assert done.stdout == ""


def check_chain(job: JobSettings) -> None:
    """Hold the script against its queue, and what is noted against what a limit asks for."""
    script, queue = render_job_script(job), job.limits
    check_shell(script)
    found = read_directives(script)
    arrays = job.cluster.scheduler == "slurm"
    chained = "--array" in found if arrays else 'cluster.begin "$run" chain' in script
    assert chained == (job.jobs > 1)
    if queue is None:  # the profile knows no limit
        assert not job.cluster.queues
        return
    admitted = queue.max_submitted_jobs
    together = 1 if not chained else job.jobs if arrays else 2
    assert admitted is None or together <= admitted
    assert queue.chain or not chained
    cluster = with_nodes(job.cluster, job.nodes)
    assert queue.fewest_nodes <= job.nodes <= queue.most_nodes
    assert job.walltime_seconds <= queue.hours_on(job.nodes) * 3_600
    if not takes_runs(cluster, job.nodes):
        assert not chained
        if job.needed_jobs is not None and job.needed_jobs > 1:
            assert any(NEAREST.search(note) for note in job.notes), job.notes


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize(("name", "cluster"), ABROAD)
def test_no_script_chains_where_its_queue_forbids_it(name: str, cluster: str) -> None:
    words = words_for(name, cluster)
    asked = recipe_of(*words).cluster
    if asked.queues and longest_queue(asked) is None:
        with pytest.raises(RecipeError, match=NEAREST) as refused:
            job_of(*words)
        assert refused.value.path == "cluster.nodes"
    else:
        check_chain(job_of(*words))


NODES = [("aurora", 16), ("aurora", 17), ("aurora", 255), ("aurora", 256), ("juwels", 385)]


@pytest.mark.quick("aurora-17", "aurora-256")
@pytest.mark.parametrize(("cluster", "nodes"), NODES)
def test_at_a_border_of_queues_script_and_plan_agree(cluster: str, nodes: int) -> None:
    ranks = nodes * PROFILES[cluster]["devices_per_node"]
    batch = f"budget.global_batch_tokens={ranks * 2_048}"
    words = ("recipe=mula1b", f"cluster={cluster}", f"parallelism.data={ranks}", batch)
    job = job_of(*words)
    check_chain(job)
    queue = longest_queue(with_nodes(job.cluster, job.nodes))
    remark = queue_remark(with_nodes(job.cluster, job.nodes), queue, job.needed_jobs)
    assert (remark is not None) == bool(job.notes)
    if remark is not None:
        assert job.notes == (f"{remark.path}: {remark.problem}; {remark.remedy}",)
    assert (job.jobs > 1) == takes_runs(job.cluster, job.nodes)
