"""Which devices ranks get, what joins them, and what is said where they are not there.

What torch answers about devices is planted: none of them is needed.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from command.outcome import Status
from components.config.recipe import Recipe
from components.config.schema.cluster import Storage
from components.config.schema.sections import Cluster
from components.distributed import devices
from components.distributed.devices import (
    check_devices,
    compute_dtype,
    device_type,
    group_backend,
    lone_backend,
    peak_memory_bytes,
)
from components.errors import RecipeError
from components.run.provenance import ROOT
from components.train.trainer import MeshStrategy, XPUAccelerator, make_trainer, register_xpu

Plant = Callable[..., list[torch.device]]
COUNTED_FRACTION = 0.99  # Linux counts the pages of each thread in batches


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Let torch see so many devices; return those that are chosen."""
    for name in ("ZE_FLAT_DEVICE_HIERARCHY", "ZE_AFFINITY_MASK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def see(*, cuda: int = 0, xpu: int = 0) -> list[torch.device]:
        chosen: list[torch.device] = []
        for module, count in ((torch.cuda, cuda), (torch.xpu, xpu)):
            monkeypatch.setattr(module, "device_count", lambda count=count: count)
            monkeypatch.setattr(module, "is_available", lambda count=count: count > 0)
            monkeypatch.setattr(module, "set_device", chosen.append)
            monkeypatch.setattr(module, "is_initialized", lambda: True)
        return chosen

    # What Lightning asks of an NVIDIA GPU: whether it is one that rounds to TensorFloat-32.
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    return see


def cluster(
    device: str, *, devices_per_node: int, scheduler: str = "none", ranks: int = 1
) -> Cluster:
    return Cluster.model_validate({
        "name": "here", "scheduler": scheduler, "device": device, "smoke": False,
        "devices_per_node": devices_per_node, "nodes": 1, "ranks": ranks, "queues": (),
        **dict.fromkeys(("hardware", "accounting", "site", "preflight"), "none"),
        "waiting_hours": 0.0, "hours": "auto", "jobs": "auto", "imports": "shared",
        "spare_nodes": 0, "spare_fraction": 0.0, "failures": {"node_hours_between": None},
        "storage": dict.fromkeys(Storage.model_fields),
        "electricity": {"power_usage_effectiveness": None, "grams_co2e_per_kwh": None},
    })  # fmt: skip


def recipe_on(device: str, *words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", f"cluster.device={device}", *words]))


@pytest.mark.parametrize(
    ("seen", "kind"),
    [({"cuda": 1, "xpu": 1}, "cuda"), ({"xpu": 2}, "xpu"), ({}, "cpu")],
    ids=["cuda before xpu", "xpu before cpu", "cpu"],
)
def test_auto_is_the_best_device_that_torch_sees(plant, seen, kind):
    plant(**seen)
    assert device_type("auto") == kind
    assert [device_type(named) for named in ("cpu", "xpu")] == ["cpu", "xpu"]


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_an_accelerator_computes_in_bfloat16_by_default(device: str) -> None:
    assert compute_dtype("auto", torch.device(device)) == torch.bfloat16
    assert compute_dtype("float32", torch.device(device)) == torch.float32


@pytest.mark.parametrize("hierarchy", ["COMPOSITE", "composite", "tiles"])
def test_gpus_with_composite_tiles_are_refused(plant, monkeypatch, hierarchy):
    plant(xpu=12)
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", hierarchy)
    with pytest.raises(RecipeError) as caught:
        check_devices(cluster("xpu", devices_per_node=12, scheduler="pbs"))
    assert str(caught.value) == (
        f"ZE_FLAT_DEVICE_HIERARCHY: {hierarchy} shows a GPU of two tiles as one device, but a "
        "rank has one tile\n  export ZE_FLAT_DEVICE_HIERARCHY=FLAT"
    )


@pytest.mark.parametrize("hierarchy", ["FLAT", "COMBINED", "flat", None])
def test_a_whole_node_of_tiles_passes(plant: Plant, monkeypatch, hierarchy: str | None) -> None:
    plant(xpu=12)
    if hierarchy is not None:
        monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", hierarchy)
    check_devices(cluster("xpu", devices_per_node=12, scheduler="pbs"))
    check_devices(cluster("xpu", devices_per_node=2))  # without a scheduler some may be left
    plant()
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    check_devices(cluster("cpu", devices_per_node=64))


@pytest.mark.parametrize(
    ("kind", "seen", "wanted", "scheduler", "message"),
    [
        (
            *("xpu", 6, 12, "pbs"),
            "cluster.devices_per_node: 12 xpu devices, one a rank, but torch sees 6 here\n"
            "  export ZE_FLAT_DEVICE_HIERARCHY=FLAT, under which each tile is a device, or "
            "report this to the site if other nodes have 12, or set cluster.devices_per_node=6",
        ),
        (
            *("xpu", 16, 8, "slurm"),
            "cluster.devices_per_node: 8 xpu devices, one a rank, but torch sees 16 here\n"
            "  set cluster.devices_per_node=16",
        ),
        (
            *("cuda", 1, 2, "none"),
            "cluster.devices_per_node: 2 cuda devices, one a rank, but torch sees 1 here\n"
            "  set cluster.ranks=1, or set cluster.device=cpu",
        ),
        (
            *("xpu", 0, 1, "none"),
            f"cluster.device: xpu, but torch {torch.__version__} sees no such device here\n"
            "  leave cluster.device=auto, or load a torch built for the device",
        ),
        (
            *("cuda", 0, 4, "slurm"),
            f"cluster.device: cuda, but torch {torch.__version__} sees no such device here\n"
            "  report this to the site if other nodes have 4, "
            "or load a torch built for the device",
        ),
    ],
    ids=["whole GPUs", "another machine", "too few", "none", "none of a cluster's"],
)
def test_devices_that_differ_from_the_recipe_are_refused(
    plant: Plant, kind: str, seen: int, wanted: int, scheduler: str, message: str
) -> None:
    plant(**{kind: seen})
    with pytest.raises(RecipeError) as caught:
        check_devices(cluster(kind, devices_per_node=wanted, scheduler=scheduler))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("kind", "mask", "value"),
    [("xpu", "ZE_AFFINITY_MASK", "3.1"), ("cuda", "CUDA_VISIBLE_DEVICES", "0")],
)
def test_an_error_names_a_mask_that_hides_devices(plant, monkeypatch, kind, mask, value):
    plant(**{kind: 1})
    monkeypatch.setenv(mask, value)
    with pytest.raises(RecipeError, match=rf"sees 1 here\n  unset {mask} \(now {value}\): a"):
        check_devices(cluster(kind, devices_per_node=4))
    names_all = "0,1,2,3"  # as a profile may set it, which hides no device
    monkeypatch.setenv(mask, names_all)
    with pytest.raises(
        RecipeError, match=r"sees 1 here\n  .*report this to the site"
    ) as caught:
        check_devices(cluster(kind, devices_per_node=4, scheduler="slurm"))
    assert mask not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("xpu", "xccl")]
)
def test_ranks_use_the_default_backend_of_their_devices(monkeypatch, kind, backend):
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    assert group_backend(kind) == dist.Backend.default_device_backend_map[kind] == backend
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name != "xccl")
    with pytest.raises(RecipeError, match=r"^cluster\.device: xpu ranks need xccl.*\n  load a"):
        group_backend("xpu")


@pytest.mark.parametrize(
    ("kind", "missing", "backend"),
    [("cpu", "nccl", "gloo"), ("cuda", "xccl", "nccl"), ("cuda", "nccl", "gloo")],
)
def test_a_single_rank_has_the_backend_of_its_device(monkeypatch, kind, missing, backend):
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name != missing)
    assert lone_backend(kind) == backend


def test_the_memory_of_a_cpu_rank_is_its_peak(monkeypatch) -> None:
    held = torch.zeros(256, 2**20, dtype=torch.uint8)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    del held
    resident_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    assert peak_memory_bytes(torch.device("cpu")) >= resident_bytes * COUNTED_FRACTION
    monkeypatch.setattr(devices, "Path", lambda name: Path("/no/such/file"))
    assert peak_memory_bytes(torch.device("cpu")) > 0  # as the system says without /proc


@pytest.mark.parametrize("module", [torch.cuda, torch.xpu], ids=["cuda", "xpu"])
def test_the_memory_of_a_device_comes_from_its_allocator(monkeypatch, module: Any) -> None:
    kind = module.__name__.removeprefix("torch.")
    monkeypatch.setattr(module, "max_memory_allocated", lambda device: 1000 + device.index)
    assert peak_memory_bytes(torch.device(kind, 3)) == 1003


def test_lightning_finds_the_xpu_accelerator(plant: Plant, monkeypatch) -> None:
    plant(xpu=2)
    register_xpu()
    register_xpu()
    strategy = MeshStrategy(recipe_on("xpu").parallelism)
    trainer = Trainer(accelerator="xpu", devices="auto", strategy=strategy)
    assert isinstance(trainer.accelerator, XPUAccelerator)
    assert strategy.parallel_devices == [torch.device("xpu", 0), torch.device("xpu", 1)]
    monkeypatch.setattr(torch.xpu, "memory_stats", lambda device: {"of": device})
    device = torch.device("xpu", 1)
    assert XPUAccelerator().get_device_stats(device) == {"of": device}
    assert XPUAccelerator.parse_devices([3, 1]) == [3, 1]
    plant()
    with pytest.raises(RecipeError, match=r"cluster\.device: xpu, but torch .* sees no such"):
        make_trainer(recipe=recipe_on("xpu"), callbacks=[], most_steps=1)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the rank 1 that torchrun starts on a node of two."""
    places = {"RANK": 1, "LOCAL_RANK": 1, "GROUP_RANK": 0, "WORLD_SIZE": 2}
    for name, value in (places | {"LOCAL_WORLD_SIZE": 2, "MASTER_PORT": 29_500}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")


class Connected(Exception):  # noqa: N818  # no error: it ends what a test needs no more of
    """The process group was asked for."""


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(("kind", "bound"), [("cuda", True), ("xpu", False)])
def test_a_rank_takes_the_device_of_its_number(plant, monkeypatch, kind, bound):
    chosen = plant(**{kind: 2})
    asked: dict[str, Any] = {}

    def connect(backend: str, **settings: Any) -> None:
        asked.update(backend=backend, **settings)
        raise Connected

    monkeypatch.setattr(dist, "init_process_group", connect)
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    trainer = make_trainer(
        recipe=recipe_on(kind, "cluster.ranks=2"), callbacks=[], most_steps=1
    )
    with pytest.raises(Connected):
        trainer.strategy.setup_environment()
    mine = torch.device(kind, 1)
    assert trainer.strategy.root_device == mine
    assert set(chosen) == {mine}
    assert asked == {
        "backend": {"cuda": "nccl", "xpu": "xccl"}[kind],
        "timeout": timedelta(minutes=30),
        "device_id": mine if bound else None,
    }


def test_a_single_xpu_rank_uses_no_collective(plant: Plant, monkeypatch) -> None:
    def refuse(*given: Any, **settings: Any) -> None:
        raise AssertionError("gloo knows no tensor on an Intel GPU")

    chosen = plant(xpu=1)
    monkeypatch.setattr(dist, "all_reduce", refuse)
    trainer = make_trainer(recipe=recipe_on("xpu"), callbacks=[], most_steps=1)
    assert isinstance(trainer.accelerator, XPUAccelerator)
    strategy = trainer.strategy
    assert isinstance(strategy, MeshStrategy)
    strategy.setup_environment()
    try:
        assert strategy.mesh.root.device_type == "xpu"
        assert dist.get_backend() == "gloo"
        assert strategy.reduce(torch.ones(()), reduce_op="sum") == 1
    finally:
        strategy.teardown()
    assert chosen == [torch.device("xpu", 0)]


def test_a_missing_device_is_refused_before_files_are_written(plant, tmp_path, capsys):
    plant()
    run = tmp_path / "run"
    words = ["recipe=teuken7b", "cluster.device=xpu", f"run={run}"]
    assert main(words) == Status.WRONG_INPUT
    assert capsys.readouterr().err.startswith("cluster.device: xpu, but torch")
    assert not run.exists()


FORKED_FROM = """
import torch
asked = []
for module in (torch.cuda, torch.xpu):
    for name in ("is_available", "device_count", "_lazy_init"):
        setattr(module, name, lambda kept=getattr(module, name): asked.append(1) or kept())
import components.train.fit
assert not asked
"""


@pytest.mark.long
def test_the_parent_of_forked_ranks_initializes_no_device() -> None:
    """Asking may start the driver, which a fork of the process then cannot use."""
    subprocess.run([sys.executable, "-c", FORKED_FROM], cwd=ROOT, check=True, timeout=600)
