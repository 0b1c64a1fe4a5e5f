"""Queues of every profile at their borders: who is taken, who chains, what is said."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.layouts import near_nodes
from components.planner.queues import (
    longest_queue,
    most_chained,
    queue_remark,
    queues_on,
    takes_runs,
    with_nodes,
)
from tests.cluster.jobs import ROOT, recipe_of

PROFILES = [
    path.stem
    for path in sorted((ROOT / "conf" / "cluster").glob("*.yaml"))
    if yaml.safe_load(Path(path).read_text("utf-8"))["queues"]
]
NO_CHAIN = "no queue of {} takes the whole chain"  # of a thousand jobs, say
NODES = re.compile(r"(cut to|raise to) ([\d,]+) \((\S+), ([\d.]+) h\)")


@cache
def profile(name: str) -> Cluster:
    ranks = ("parallelism.data=96", "budget.global_batch_tokens=393216")  # they fill any nodes
    return recipe_of("recipe=mula1b", f"cluster={name}", *ranks).cluster


def borders(cluster: Cluster) -> list[int]:
    """List the numbers of nodes at, below and above each border of a queue."""
    ends = {end for q in cluster.queues for end in (q.fewest_nodes, q.most_nodes)}
    return sorted({end + step for end in ends for step in (-1, 0, 1)} - {0})


def for_everybody(cluster: Cluster, nodes: int, hours: float) -> bool:
    """Whether a queue that needs no request takes a chain of so many hours on these nodes."""
    usual = queues_on(with_nodes(cluster, nodes))
    long = any(holds(cluster, queue, hours) for queue in usual)
    return long and takes_runs(cluster, nodes) and not any(one.by_request for one in usual)


def holds(cluster: Cluster, queue: QueueSection, hours: float) -> bool:
    """Whether one chain in the queue is as long."""
    most = most_chained(cluster, queue)
    return most is None or most * queue.longest_hours >= hours


def of_debug(*, limits: dict[str, object], scheduler: str = "slurm") -> Cluster:
    queue = {"name": "debug", "fewest_nodes": 1, "most_nodes": 4, "longest_hours": 1.5}
    queues = (QueueSection.model_validate({**queue, **limits}),)
    return profile("juwels").model_copy(update={"queues": queues, "scheduler": scheduler})


def remark_on(cluster: Cluster, jobs: int, queue: QueueSection | None = None) -> RecipeError:
    remark = queue_remark(cluster, queue or longest_queue(cluster), jobs)
    assert remark is not None
    return remark


@pytest.mark.parametrize("name", PROFILES)
def test_a_long_run_has_a_chain_or_the_nearest_node_count(name):
    queues = [
        queue for queue in profile(name).queues if not queue.debug and not queue.by_request
    ]
    for nodes in borders(profile(name)):
        cluster = with_nodes(profile(name), nodes)
        queue = longest_queue(cluster)
        remark = queue_remark(cluster, queue, 1_000)
        chains = queue is not None and most_chained(cluster, queue) in {None, 1_000, 10_000}
        usual = chains and queue is not None and not queue.by_request
        assert (remark is None) == (usual and takes_runs(cluster, nodes)), nodes
        if remark is None:
            continue
        ways = NODES.findall(f"{remark.problem} {remark.remedy}")
        if remark.remedy == NO_CHAIN.format(name):
            assert queue is not None
            assert not any(holds(cluster, one, 1_000 * queue.longest_hours) for one in queues)
            continue
        assert ways, remark
        for verb, number, taken_by, hours in ways:
            near = int(number.replace(",", ""))
            assert (verb == "cut to") == (near < nodes)
            found = longest_queue(with_nodes(cluster, near))
            assert found is not None
            assert (found.route or found.name, found.longest_hours) == (taken_by, float(hours))
            there = queue_remark(with_nodes(cluster, near), found, 1_000)
            assert there is None or there.remedy == NO_CHAIN.format(name)
            between = range(min(near, nodes) + 1, max(near, nodes))
            long = 1_000 * queue.longest_hours if queue else 0.0
            assert not any(for_everybody(cluster, closer, long) for closer in between)


def test_aurora_has_no_production_queue_for_17_to_255_nodes() -> None:
    aurora = profile("aurora")
    without = [nodes for nodes in range(1, 2_000) if not takes_runs(aurora, nodes)]
    assert without == list(range(17, 256))
    for nodes in (17, 64, 255):
        cluster = with_nodes(aurora, nodes)
        assert str(remark_on(cluster, 2_960)) == (
            f"cluster.nodes: {nodes}: for 17 to 255 nodes aurora has only debug-scaling, 1 h, "
            "to one job of a user, running or waiting: no chain, each of the run's 2,960 jobs "
            "is submitted by hand (again=true)\n  what takes the whole chain: cut to 16 "
            "(capacity, 168 h) or raise to 256 (prod, 12 h)"
        )
        assert queue_remark(cluster, longest_queue(cluster), 1) is None


def test_a_named_debug_queue_suggests_the_production_queue() -> None:
    cluster = with_nodes(profile("aurora"), 256)
    scaling = next(queue for queue in cluster.queues if queue.name == "debug-scaling")
    assert (
        remark_on(cluster, 40, scaling).remedy
        == "what takes the whole chain: site.queue=prod, 12 h"
    )


def test_a_queue_by_request_is_used_last_with_a_note() -> None:
    juwels, jean_zay = profile("juwels"), profile("jean_zay")
    assert [queue.name for queue in queues_on(with_nodes(juwels, 384))] == ["booster"]
    cluster = with_nodes(juwels, 500)
    large = longest_queue(cluster)
    assert large is not None
    assert large.name == "largebooster"
    assert remark_on(cluster, 3).remedy == "without one: cut to 384 (booster, 24 h)"
    assert [queue.name for queue in queues_on(with_nodes(jean_zay, 48))] == ["qos_gpu_a100-t3"]


def test_the_longest_queue_that_accepts_the_nodes_is_chosen() -> None:
    for nodes, name in ((16, "capacity"), (256, "small"), (20_000, None)):
        queue = longest_queue(with_nodes(profile("aurora"), nodes))
        assert (queue.name if queue else None) == name


@pytest.mark.parametrize(("nodes", "minutes"), [(1, 90), (2, 45), (4, 22.5)])
def test_nodes_share_the_node_minutes_of_a_job(nodes: int, minutes: float) -> None:
    cluster = with_nodes(of_debug(limits={"node_minutes": 90}), nodes)  # as CSCS's debug
    queue = longest_queue(cluster)
    assert queue is not None
    assert queue.longest_hours * 60 == pytest.approx(minutes)


@pytest.mark.parametrize(
    ("scheduler", "limits", "most"),
    [
        ("slurm", {"submitted_per_user": 10}, 10),
        ("pbs", {"submitted_per_user": 10}, None),  # a job and its successor, never more
        ("pbs", {"submitted_per_user": 1}, 1),
        ("slurm", {"submitted_per_user": 10, "submitted_per_project": 4}, 4),
        ("slurm", {"chain": False}, 1),
        ("slurm", {}, None),
    ],
)
def test_a_chain_has_as_many_jobs_as_a_user_may_have_submitted(scheduler, limits, most):
    cluster = of_debug(limits=limits, scheduler=scheduler)
    assert most_chained(cluster, cluster.queues[0]) == most


def test_a_chain_beyond_an_array_is_several_chains() -> None:
    cluster = of_debug(limits={"submitted_per_user": 10})
    remark = remark_on(cluster, 25, cluster.queues[0])
    assert remark.problem.endswith("the run's 25 jobs are submitted in 3 chains (again=true)")


def test_no_queue_with_an_equally_short_chain_is_suggested() -> None:
    remark = remark_on(with_nodes(profile("frontier"), 64), 150)
    said = "64: extended gives 24 h, to 100 jobs of a user, running or waiting"
    assert said in remark.problem
    assert remark.remedy == NO_CHAIN.format("frontier")


def test_no_job_waits_for_another_if_the_site_forbids_it() -> None:
    cluster = of_debug(limits={"chain": False, "submitted_per_user": 4})
    remark = remark_on(cluster, 2, cluster.queues[0])
    assert "1.5 h, where no job may wait for another: no chain" in remark.problem


def test_a_search_uses_node_counts_of_queues_for_long_runs() -> None:
    aurora = profile("aurora")
    assert list(near_nodes(aurora, 512)) == [16, 256]  # 43 nodes
    assert list(near_nodes(aurora, 16 * 12)) == [16]
    assert list(near_nodes(aurora, 300 * 12)) == [300]
    assert 9 in set(near_nodes(aurora, 100))
