"""Checkpoints, failures and chains of jobs: what they hold and cost, by hand and counted."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from components.build import build_node
from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import ShardState
from components.config.schema.cluster import QueueSection
from components.config.schema.sections import Cluster
from components.distributed.data import DataParallel
from components.distributed.devices import StateDtypes
from components.distributed.mesh import build_mesh
from components.planner.interruptions import (
    CheckpointTime,
    best_interval,
    chain_of,
    chain_of_phases,
    checkpoint_bytes,
    checkpoint_time,
    expected_failures,
    job_rate,
    mean_seconds_between,
    missing_rates,
)
from components.planner.job import job_from_recipe
from components.planner.software import OURS, SoftwareRun, read_software
from tests.components.checkpoint.saving_cases import save_checkpoint
from tests.components.layouts import parallelism
from tests.recipes.compositions import at_home, compose

HOUR = 3_600.0
WEEK = 168 * HOUR
DAY_QUEUE = QueueSection(name="day", fewest_nodes=1, most_nodes=9, longest_hours=24.0)
NEVER = {"start_up": 12 * HOUR, "hand_over": 12 * HOUR}  # jobs that only start, read and write
hours = st.floats(0.1, 10.0).map(lambda count: count * HOUR)


@pytest.fixture
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def on_storage(cluster: Cluster, **rates: float | None) -> Cluster:
    return cluster.model_copy(update={"storage": cluster.storage.model_copy(update=rates)})


def run_figures(**changes: Any) -> SoftwareRun:
    figures = read_software(OURS).run
    assert figures is not None
    return figures.model_copy(update=changes)


def timed(
    cluster: Cluster, *, asynchronous: bool = True, name: str = "bloom176b", **changes: Any
) -> CheckpointTime:
    job, run = job_from_recipe(at_home(name)), run_figures(**changes)
    return checkpoint_time(job, cluster, run, asynchronous=asynchronous)


def numbers_bytes(file: Path) -> int:
    """Count a safetensors file without its header, whose length its first 8 bytes say."""
    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    return file.stat().st_size - 8 - header


@pytest.mark.usefixtures("_world_of_one")
@pytest.mark.parametrize("name", ["teuken7b", "mula7b_a1b", "gpt3b6"])
def test_a_checkpoint_has_the_planned_size(name: str, tmp_path: Path) -> None:
    """Tied and untied ends, padding rows, experts and learned positions are all written."""
    words = ("model.dim=64", "precision.compute=bfloat16", "parallelism.engine=mesh")
    recipe = compose(name, *words)
    parallel = DataParallel(
        [build_node(recipe.model, "model")],
        build_mesh("cpu", parallelism()),
        zero=0,
        dtypes=StateDtypes.from_precision(recipe.precision, torch.device("cpu")),
        bucket_elements=10_000,
        overlap=True,
    )
    parameters = [(one.name, one.parameter) for one in parallel.shards]
    optimizer = build_node(recipe.optimizer, "optimizer")(parameters=parameters)
    state = ShardState(parallel, optimizer)
    folder = save_checkpoint(tmp_path, state, RunProgress(0, 0))
    written = sum(numbers_bytes(file) for file in folder.glob("*.safetensors"))
    counters = [one for name, one in state.collect_tensors().items() if name.endswith(".step")]
    assert written == checkpoint_bytes(job_from_recipe(recipe)) + 4 * len(counters)


def test_bloom_s_checkpoint_has_14_bytes_a_parameter() -> None:
    """Megatron's had 2,294.8 GiB: rounded weights, their masters and two moments."""
    size = checkpoint_bytes(job_from_recipe(at_home("bloom176b")))
    assert size == 14 * 176_247_271_424
    assert size / 2**30 == pytest.approx(2_294.8, rel=2e-3)
    whole = at_home("bloom176b", "precision.weights=float32")
    assert checkpoint_bytes(job_from_recipe(whole)) == 12 * 176_247_271_424


def test_deepspeed_writes_masters_without_the_rounded_weights() -> None:
    alone = [f"parallelism.{degree}" for degree in ("pipeline=1", "tensor=1", "data=8")]
    recipes = (
        compose("gpt20b", "cluster=smng_p2", f"parallelism.engine={engine}", *words)
        for engine, words in (("mesh", []), ("deepspeed", alone))
    )
    mesh, deepspeed = (checkpoint_bytes(job_from_recipe(recipe)) for recipe in recipes)
    assert mesh / 14 == deepspeed / 12


def test_steps_stall_for_the_copy_or_the_whole_save() -> None:
    cluster = at_home("bloom176b").cluster
    size = checkpoint_bytes(job_from_recipe(at_home("bloom176b")))
    goes_on, waits = (
        timed(cluster, asynchronous=one, copy_gigabytes_per_second=5.0) for one in (True, False)
    )
    assert goes_on.stall_seconds == pytest.approx(size / (384 * 5e9))
    assert goes_on.delay_seconds == goes_on.write_and_hash_seconds == waits.stall_seconds
    assert waits.stall_seconds == waits.write_and_hash_seconds
    assert waits.delay_seconds == 0.0


def test_writing_and_hashing_by_all_ranks_take_as_long_as_the_slower() -> None:
    cluster = on_storage(at_home("bloom176b").cluster, read_gigabytes_per_second=100.0)
    saving = timed(cluster, hash_gigabytes_per_second=2.0)
    size = checkpoint_bytes(job_from_recipe(at_home("bloom176b")))
    assert saving.write == saving.write_and_hash_seconds == pytest.approx(size / 61.6e9)
    assert saving.read == pytest.approx(2 * size / 100e9)  # to hash it, then to take it
    slow = timed(cluster, hash_gigabytes_per_second=0.1)
    assert slow.write_and_hash_seconds == slow.hashing == pytest.approx(size / (384 * 0.1e9))
    assert slow.read == pytest.approx(slow.hashing + size / 100e9)


def test_few_nodes_are_limited_by_their_network() -> None:
    one = compose("gpt3b6", "cluster=smng_p2").cluster
    assert one.nodes == 1
    assert job_rate(one, None) == 8 * 6.25e9
    many = one.model_copy(update={"nodes": 200})
    assert job_rate(many, None) == 750e9
    assert job_rate(many, 20.0) == 20e9


def test_unmeasured_storage_is_named_with_its_substitute() -> None:
    unknown = at_home("teuken7b").cluster
    saving = timed(unknown, name="teuken7b")
    assert saving.write is None
    assert saving.write_and_hash_seconds == saving.hashing == saving.read
    write, read = missing_rates(unknown)
    assert write.path == "cluster.storage.write_gigabytes_per_second"
    assert "as long as hashing it" in write.problem
    assert "ior -w" in write.remedy
    assert "as if it were at hand" in read.problem
    peak, _ = missing_rates(on_storage(unknown, peak_gigabytes_per_second=400.0))
    assert "the file system's peak is used" in peak.problem
    known = on_storage(unknown, write_gigabytes_per_second=40.0, read_gigabytes_per_second=50.0)
    assert missing_rates(known) == []


def lost_seconds(work: float, interval: float, restart: float, between: float) -> float:
    lost = expected_failures(work=work, interval=interval, restart=restart, between=between)
    assert lost is not None
    return lost.total_seconds


def test_young_s_interval_of_bloom_s_published_figures() -> None:
    """sqrt(2 x 40 s x one week) is 1.9 h; BLOOM chose 100 steps of 105 s, 2.9 h."""
    assert mean_seconds_between(8_064.0, 48) == WEEK  # a device a week on its 48 nodes
    best = best_interval(stall=40.0, between=WEEK)
    assert best == pytest.approx(6_956, abs=1)
    assert 100 * 105 / best == pytest.approx(1.5, abs=0.02)


def test_blooms_failures_lose_the_hours_of_its_chronicle() -> None:
    """An hour and a half each on average, three hours at most: half of 100 steps, and all."""
    lost = expected_failures(work=HOUR, interval=10_500.0, restart=0.0, between=WEEK)
    assert lost is not None
    assert lost.each_seconds is not None
    assert lost.each_seconds / HOUR == pytest.approx(1.5, abs=0.05)


def test_the_best_interval_loses_less_than_its_neighbors() -> None:
    stall, between, work = 60.0, 48 * HOUR, 1_000 * HOUR

    def cost(interval: float) -> float:
        return work / interval * stall + lost_seconds(work, interval, 0.0, between)

    best = best_interval(stall=stall, between=between)
    assert cost(best) < min(cost(best * 0.8), cost(best * 1.25))


def test_failures_drawn_at_random_cost_what_is_expected() -> None:
    """Drawn from the exponential distribution that a constant rate has, in a run of a year."""
    between, interval, restart, work = 100 * HOUR, 2 * HOUR, 0.5 * HOUR, 365 * 24 * HOUR
    drawn, total, runs = Random(7), 0.0, 200
    for _ in range(runs):
        clock, saved, next_failure = 0.0, 0.0, drawn.expovariate(1 / between)
        while saved < work:
            if clock + interval <= next_failure:
                clock, saved = clock + interval, saved + interval
            else:
                clock = next_failure + restart
                next_failure = clock + drawn.expovariate(1 / between)
        total += clock
    expected = work + lost_seconds(work, interval, restart, between)
    assert total / runs == pytest.approx(expected, rel=0.003)


@given(interval=hours, restart=hours, between=st.floats(30.0, 1e4).map(lambda h: h * HOUR))
def test_losses_grow_with_intervals_restarts_and_failures(
    interval: float, restart: float, between: float
) -> None:
    before = lost_seconds(1e6, interval, restart, between)
    assert lost_seconds(1e6, interval * 1.2, restart, between) > before
    assert lost_seconds(1e6, interval, restart * 1.2, between) > before
    assert lost_seconds(1e6, interval, restart, between * 1.2) < before


def test_a_run_with_too_frequent_failures_never_ends() -> None:
    assert expected_failures(work=1.0, interval=2.0, restart=1.0, between=2.0) is None
    assert expected_failures(work=1.0, interval=2.0, restart=0.9, between=2.0) is not None


@given(
    work=st.floats(1.0, 400 * 24 * HOUR),
    start_up=st.floats(0.0, 2 * HOUR),
    write=st.floats(0.0, 2 * HOUR),
    read=st.floats(0.0, 2 * HOUR),
)
def test_the_number_of_jobs_is_the_smallest_that_suffices(work, start_up, write, read):
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


def test_without_a_limit_a_single_job_suffices() -> None:
    chain = chain_of(1e9, None, start_up=60.0, hand_over=2.0)
    assert chain is not None
    assert (chain.queue, chain.jobs, chain.seconds) == (None, 1, 60.0)
    assert chain_of(1e9, DAY_QUEUE, **NEVER) is None
    assert chain_of(1.0, DAY_QUEUE, **NEVER)
    assert chain_of_phases([1e9, 1.0], DAY_QUEUE, **NEVER) is None


def test_a_phase_begins_with_a_new_job() -> None:
    known = {"start_up": 60.0, "hand_over": 12.0}
    days = [10.5 * 24 * HOUR, 3.0 * HOUR]
    first, second = (chain_of(one, DAY_QUEUE, **known) for one in days)
    both = chain_of_phases(days, DAY_QUEUE, **known)
    assert first is not None
    assert second is not None
    assert both is not None
    assert both.jobs == first.jobs + 1
    assert both.seconds == pytest.approx(first.seconds + second.seconds + 12.0)
    assert chain_of_phases(days[:1], DAY_QUEUE, **known) == first
