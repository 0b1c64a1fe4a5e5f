"""AMD's GPUs, which torch calls ``cuda``, and ranks that are shown one device each."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.attention_backends import AttentionCase, Backend, select_backends
from components.config.recipe import Recipe
from components.distributed.devices import check_float8_device, device_kind, device_type
from components.errors import RecipeError
from components.model.attention_kernels import _lacking
from components.model.expert_products import has_grouped_kernel
from components.train.ranks import allocator_variables, cache_variables
from components.train.trainer import OwnDeviceAccelerator, make_trainer
from tests.components.train.test_trainer import Connected, Plant, plant

__all__ = ["plant"]  # a fixture


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")


def recipe_on(*words: str) -> Recipe:
    named = () if any(word.startswith("recipe=") for word in words) else ("recipe=teuken7b",)
    return compose_recipe(read_point([*named, "cluster=lumi", *words]))


@pytest.fixture
def fourth_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the rank 3 of a node, which its site shows device 3 alone."""
    places = {"RANK": 3, "LOCAL_RANK": 3, "GROUP_RANK": 0, "WORLD_SIZE": 512}
    for name, value in (places | {"LOCAL_WORLD_SIZE": 8, "MASTER_PORT": 29_500}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")


@pytest.mark.usefixtures("fourth_of_eight", "amd")
@pytest.mark.parametrize(
    ("words", "seen", "index"),
    [((), 1, 0), (("cluster.site.rank_environment={}",), 8, 3)],
    ids=["shown its own", "shown all"],
)
def test_a_rank_takes_the_only_visible_device(plant, monkeypatch, words, seen, index):
    chosen = plant(cuda=seen)
    asked: dict[str, Any] = {}

    def connect(backend: str, **settings: Any) -> None:
        asked.update(backend=backend, **settings)
        raise Connected

    monkeypatch.setattr(dist, "init_process_group", connect)
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    trainer = make_trainer(recipe=recipe_on(*words), callbacks=[], most_steps=1)
    assert isinstance(trainer.accelerator, OwnDeviceAccelerator) == (seen == 1)
    with pytest.raises(Connected):
        trainer.strategy.setup_environment()
    mine = torch.device("cuda", index)
    assert (trainer.strategy.root_device, set(chosen)) == (mine, {mine})
    assert (asked["backend"], asked["device_id"]) == ("nccl", mine)  # RCCL has NCCL's name
    assert (trainer.local_rank, trainer.num_devices, trainer.world_size) == (3, 8, 512)


def test_deepspeed_is_refused_with_hidden_devices() -> None:
    words = ("recipe=mula1b", "parallelism.engine=deepspeed", "parallelism.data=512")
    with pytest.raises(RecipeError, match=r"engine: DeepSpeed .* but ROCR_VISIBLE_DEVICES hid"):
        recipe_on(*words)
    shown = recipe_on(*words, "cluster.site.rank_environment={}", "cluster.device=rocm")
    assert shown.cluster.rank_mask is None


def test_rocm_of_a_profile_is_cuda_of_torch(plant: Plant, monkeypatch) -> None:
    plant(cuda=1)
    assert (device_type("rocm"), device_type("auto")) == ("cuda", "cuda")
    assert [device_kind(one) for one in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    assert [device_kind(one) for one in ("auto", "rocm", "cpu")] == ["rocm", "rocm", "cpu"]
    assert {"MIOPEN_USER_DB_PATH", "TRITON_CACHE_DIR"} <= set(cache_variables("rocm"))
    assert "CUDA_CACHE_PATH" not in cache_variables("rocm")
    assert allocator_variables("rocm", {}) == {}


ORDER: tuple[Backend, ...] = ("cudnn", "flash", "efficient", "overrideable", "flex")
CASE = AttentionCase(
    device="rocm", dtype="bfloat16", head_dim=128, grouped=False, dropout=False, mask="causal"
)


def test_rocm_uses_kernels_of_torch_without_cudnn(plant: Plant, monkeypatch) -> None:
    assert select_backends(ORDER, CASE) == ("flash", "efficient", "flex")
    assert select_backends(ORDER, CASE._replace(device="cuda"))[0] == "cudnn"
    plant(cuda=1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))  # an MI250X's
    assert _lacking("cuda") == ()
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    assert _lacking("cuda") == ("cudnn",)
    assert not has_grouped_kernel("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(RecipeError, match=r"float8, but an? \w+ device has no float8 products"):
        check_float8_device(torch.device("cuda", 0))
