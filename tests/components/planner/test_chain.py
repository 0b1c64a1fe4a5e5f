"""Jobs under a queue's limit, counted one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.schema.cluster import QueueSection
from components.planner.interruptions import chain_of, chain_of_phases
from components.planner.queues import longest_queue

DAY_QUEUE = QueueSection(name="day", fewest_nodes=1, most_nodes=9, longest_hours=24.0)
HOUR = 3_600.0


@given(
    work=st.floats(1.0, 400 * 24 * HOUR),
    start_up=st.floats(0.0, 2 * HOUR),
    write=st.floats(0.0, 2 * HOUR),
    read=st.floats(0.0, 2 * HOUR),
)
def test_so_many_jobs_end_the_work_and_one_less_does_not(
    work: float, start_up: float, write: float, read: float
) -> None:
    chain = chain_of(work, DAY_QUEUE, start_up=start_up, hand_over=write + read)
    assert chain is not None
    done, jobs = 0.0, 0
    while done < work - 1e-6:
        room = 24 * HOUR - start_up - (read if jobs else 0.0)
        left = work - done
        done += left if left <= room else room - write
        jobs += 1
    assert chain.jobs == jobs
    hand_overs = (jobs - 1) * (write + read)
    assert chain.seconds == pytest.approx(jobs * start_up + hand_overs)
    assert work + chain.seconds <= jobs * 24 * HOUR + 1e-3


def test_without_a_limit_one_job_starts_once() -> None:
    chain = chain_of(1e9, None, start_up=60.0, hand_over=2.0)
    assert chain is not None
    assert (chain.queue, chain.jobs, chain.seconds) == (None, 1, 60.0)


def test_jobs_that_only_start_read_and_write_make_no_chain() -> None:
    assert chain_of(1e9, DAY_QUEUE, start_up=12 * HOUR, hand_over=12 * HOUR) is None
    assert chain_of(1.0, DAY_QUEUE, start_up=12 * HOUR, hand_over=12 * HOUR)


def test_of_the_queues_that_take_the_nodes_the_longest_is_chosen() -> None:
    aurora = compose_recipe(read_point(["recipe=mula1b", "cluster=aurora"])).cluster
    chosen = {
        nodes: longest_queue(aurora.model_copy(update={"nodes": nodes}))
        for nodes in (16, 256, 1_500, 20_000)
    }
    names = {nodes: queue.name if queue else None for nodes, queue in chosen.items()}
    assert names == {16: "capacity", 256: "small", 1_500: "medium", 20_000: None}


def test_a_phase_begins_with_a_job_of_its_own() -> None:
    known = {"start_up": 60.0, "hand_over": 12.0}
    days = [10.5 * 24 * HOUR, 3.0 * HOUR]
    alone = [chain_of(one, DAY_QUEUE, **known) for one in days]
    both = chain_of_phases(days, DAY_QUEUE, **known)
    assert alone[0] is not None
    assert alone[1] is not None
    assert both is not None
    assert both.jobs == alone[0].jobs + 1
    assert both.seconds == pytest.approx(alone[0].seconds + alone[1].seconds + 12.0)
    assert chain_of_phases(days[:1], DAY_QUEUE, **known) == alone[0]
    never = {"start_up": 12 * HOUR, "hand_over": 12 * HOUR}
    assert chain_of_phases([1e9, 1.0], DAY_QUEUE, **never) is None
