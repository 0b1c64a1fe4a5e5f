"""What a checkpoint of ours holds, and how long a run stands still for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import ShardState
from components.config.recipe import Recipe
from components.config.schema.sections import Cluster
from components.distributed.data import DataParallel
from components.distributed.devices import StateDtypes
from components.distributed.mesh import build_mesh
from components.planner.interruptions import (
    CheckpointTime,
    checkpoint_bytes,
    checkpoint_time,
    job_rate,
    missing_rates,
)
from components.planner.job import TrainingJob, job_from_recipe
from components.planner.software import OURS, SoftwareRun, read_software
from tests.components.checkpoint.saving_cases import save_checkpoint
from tests.components.layouts import parallelism

DATA = "parallelism.data=8"


@pytest.fixture
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compose(*words: str) -> Recipe:
    return compose_recipe(read_point(list(words)))


def on_storage(cluster: Cluster, **rates: float | None) -> Cluster:
    return cluster.model_copy(update={"storage": cluster.storage.model_copy(update=rates)})


def run_figures(**changes: Any) -> SoftwareRun:
    figures = read_software(OURS).run
    assert figures is not None
    return figures.model_copy(update=changes)


def numbers_bytes(file: Path) -> int:
    """Count a safetensors file without its header, whose length its first 8 bytes say."""
    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    return file.stat().st_size - 8 - header


@pytest.mark.usefixtures("_world_of_one")
@pytest.mark.parametrize("name", ["teuken7b", "mula7b_a1b", "gpt3b6"])
def test_a_checkpoint_is_as_large_as_the_plan_says(name: str, tmp_path: Path) -> None:
    """Tied and untied ends, padding rows, experts and learned positions are all written."""
    words = ("model.dim=64", "precision.compute=bfloat16", "parallelism.engine=mesh")
    recipe = compose(f"recipe={name}", *words)
    decoder = build_node(recipe.model, "model")
    mesh = build_mesh("cpu", parallelism())
    parallel = DataParallel(
        [decoder],
        mesh,
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
    job = job_from_recipe(compose("recipe=bloom176b", "cluster=jean_zay"))
    assert checkpoint_bytes(job) == 14 * 176_247_271_424
    assert checkpoint_bytes(job) / 2**30 == pytest.approx(2_294.8, rel=2e-3)
    whole = compose("recipe=bloom176b", "cluster=jean_zay", "precision.weights=float32")
    assert checkpoint_bytes(job_from_recipe(whole)) == 12 * 176_247_271_424


def test_deepspeed_writes_masters_without_the_rounded_weights() -> None:
    recipes = [
        compose("recipe=gpt20b", "cluster=smng_p2", f"parallelism.engine={engine}", *words)
        for engine, words in (
            ("mesh", ()),
            ("deepspeed", ("parallelism.pipeline=1", "parallelism.tensor=1", DATA)),
        )
    ]
    mesh, deepspeed = (checkpoint_bytes(job_from_recipe(recipe)) for recipe in recipes)
    assert mesh / 14 == deepspeed / 12


def timed(
    job: TrainingJob, cluster: Cluster, run: SoftwareRun, *, asynchronous: bool = True
) -> CheckpointTime:
    return checkpoint_time(job, cluster, run, asynchronous=asynchronous)


def test_steps_stall_for_the_copy_or_for_all_of_it() -> None:
    recipe = compose("recipe=bloom176b", "cluster=jean_zay")
    job, size = job_from_recipe(recipe), checkpoint_bytes(job_from_recipe(recipe))
    run = run_figures(copy_gigabytes_per_second=5.0)
    goes_on = timed(job, recipe.cluster, run)
    waits = timed(job, recipe.cluster, run, asynchronous=False)
    assert goes_on.stall_seconds == pytest.approx(size / (384 * 5e9))
    assert (
        goes_on.delay_seconds
        == goes_on.write_and_hash_seconds
        == waits.write_and_hash_seconds
        == waits.stall_seconds
    )
    assert waits.delay_seconds == 0.0


def test_writing_and_hashing_by_all_ranks_take_as_long_as_the_slower() -> None:
    recipe = compose("recipe=bloom176b", "cluster=jean_zay")
    cluster = on_storage(recipe.cluster, read_gigabytes_per_second=100.0)
    job = job_from_recipe(recipe)
    saving = timed(job, cluster, run_figures(hash_gigabytes_per_second=2.0))
    size = checkpoint_bytes(job)
    assert saving.write == saving.write_and_hash_seconds == pytest.approx(size / 61.6e9)
    assert saving.read == pytest.approx(2 * size / 100e9)  # to hash it, then to take it
    slow = timed(job, cluster, run_figures(hash_gigabytes_per_second=0.1))
    assert slow.write_and_hash_seconds == slow.hashing == pytest.approx(size / (384 * 0.1e9))
    assert slow.read == pytest.approx(slow.hashing + size / 100e9)


def test_faster_storage_and_hashing_never_stall_longer() -> None:
    recipe = compose("recipe=bloom176b", "cluster=jean_zay")
    job, stalls = job_from_recipe(recipe), []
    for rate in (1.0, 10.0, 100.0):
        cluster = on_storage(recipe.cluster, write_gigabytes_per_second=rate)
        stalls.append(timed(job, cluster, run_figures(), asynchronous=False).stall_seconds)
    assert stalls == sorted(stalls, reverse=True)
    slow, fast = (run_figures(hash_gigabytes_per_second=rate) for rate in (1.0, 2.0))
    assert timed(job, recipe.cluster, fast, asynchronous=False).stall_seconds < stalls[0]
    halves = [timed(job, recipe.cluster, run).hashing for run in (slow, fast)]
    assert halves[0] == 2 * halves[1]


def test_few_nodes_get_no_more_of_a_file_system_than_their_network_takes() -> None:
    one = compose("recipe=gpt3b6", "cluster=smng_p2").cluster
    assert one.nodes == 1
    assert job_rate(one, None) == 8 * 6.25e9
    many = one.model_copy(update={"nodes": 200})
    assert job_rate(many, None) == 750e9
    assert job_rate(many, 20.0) == 20e9


def test_storage_that_nobody_measured_is_named_with_what_is_done_instead() -> None:
    unknown = compose("recipe=teuken7b", "cluster=juwels").cluster
    saving = timed(
        job_from_recipe(compose("recipe=teuken7b", "cluster=juwels")), unknown, run_figures()
    )
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
