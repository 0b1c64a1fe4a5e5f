"""A rank of a world that does not exist: a fake process group, tensors without values.

Fake tensors are those of a CPU, whose kernels keep more than a GPU's. So a stand-in, which
computes nothing, makes and saves the tensors that the device's kernel would.

    attention                   the kernel that the recipe's order comes to; flex and cuDNN keep
                                what flash attention does, ``math`` is torch's formula
    RMSNorm                     the fused kernel: saves its input and a number a vector
    dropout                     the fused kernel: saves a byte a number
    experts                     grouped products where the layer takes them, else one by one
    Adam                        its update of all parameters at once
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor, nn
from typing_extensions import override

from components.attention_backends import Backend
from components.config.recipe import Recipe
from components.distributed.devices import device_type
from components.distributed.mesh import build_mesh
from components.distributed.pipeline import Microbatches
from components.dryrun.ledgers import OperatorWatch
from components.engine.mesh_engine import MeshEngine
from components.engine.parallelize import RankModel, allocate, parallelize_model
from components.model import attention, attention_kernels, expert_products, products, softmax
from components.model.moe import Mixture
from components.torch_internals import operators
from components.train import module
from components.train.batches import StepBatch
from components.train.module import Pretraining
from components.train.step_metrics import ReducedMetrics, reduce_step_metrics
from components.train.trainer import MeshStrategy


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[None]:
    """Make this process one of ``ranks`` whose collectives return at once."""
    dist.init_process_group("fake", store=operators.FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Answers(OperatorWatch):
    """Answer who asks a fake tensor for a number: one, or yes.

    A step asks for a microbatch's number, the norm, and what ranks agreed on; torch's pipelines
    ask whether all stages know the shapes of their messages.
    """

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is not operators.READ_NUMBER.default:
            return func(*args, **kwargs)
        dtype = args[0].dtype
        return dtype is torch.bool or (1.0 if dtype.is_floating_point else 1)


class _WideSums(OperatorWatch):
    """Answer for a product that is added to a wider sum: fake tensors of torch 2.11 cannot."""

    @override
    def see(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs["out"] if func is operators.ADD_TO_WIDER else func(*args, **kwargs)


def trainer_of(recipe: Recipe) -> Trainer:
    """Make what a module asks for its mesh, that of the default group; nothing is fitted."""
    warnings.filterwarnings("ignore", message="GPU available but not used")  # nothing is fitted
    strategy = MeshStrategy(recipe.parallelism)
    strategy.mesh = build_mesh("cpu", recipe.parallelism)
    return Trainer(
        accelerator="cpu",
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )


def empty_batch(recipe: Recipe, microbatches: int) -> StepBatch:
    """Make a step's batch of tokens without values."""
    sequences, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    return StepBatch(torch.empty(microbatches, sequences, length + 1, dtype=torch.int64))


class FakeRank(Pretraining):
    """The module of a run, its weights in ``fake``, on the mesh of the default group."""

    engine: MeshEngine
    microbatches: Microbatches

    def __init__(self, *, recipe: Recipe, fake: operators.FakeTensorMode) -> None:
        super().__init__(recipe=recipe, eod_id=0)
        self._fake = fake
        self.trainer = trainer_of(recipe)

    @override
    def build_model(self) -> RankModel:
        device = torch.device(device_type(self.recipe.cluster.device))
        model = parallelize_model(self.recipe, self.mesh, device=device)
        with self._fake:
            allocate(model, device=torch.device("cpu"))
        return model

    @override
    def make_microbatches(self) -> Microbatches:
        self.microbatches = super().make_microbatches()
        return self.microbatches


@contextmanager
def device_kernels(kind: str) -> Iterator[None]:
    """Take the kernels of a kind of GPU where a CPU would take its own, and blocks of its size.

    By name, as torch's mode for functions is off while a backward pass recomputes a layer.
    """
    with (
        _WideSums(),
        patch.object(attention, "device_kind", lambda tensor: kind),
        patch.object(attention_kernels, "of_one_width", _attend),
        patch.object(attention_kernels, "flex", _flex),
        patch.object(F, "rms_norm", _normalize),
        patch.object(F, "dropout", _drop),
        patch.object(softmax, "BLOCKS", {}),
        patch.object(products, "adds_wide", lambda device, dtype: True),
    ):
        yield


@contextmanager
def even_load() -> Iterator[None]:
    """Answer the host, which asks how many tokens an expert has, as if all had as many."""

    def even_pairs(experts: Tensor, expert: int, *, num_experts: int) -> tuple[Tensor, Tensor]:
        share = experts.flatten()[: experts.numel() // num_experts]
        return share, share

    def agree(*given: Any, **named: Any) -> ReducedMetrics:
        return replace(reduce_step_metrics(*given, **named), pairs_beyond=0.0)

    with (
        patch.object(expert_products, "on_host", lambda counts, *, even: list(even)),
        patch.object(expert_products, "pairs_of", even_pairs),
        patch.object(module, "reduce_step_metrics", agree),
    ):
        yield


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kernels: Sequence[Backend],
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    """Attend in the first of the kernels."""
    assert mask is None, "a GPU's kernels get no dense mask"
    if kernels[0] == "math":
        found = operators.MATH_ATTENTION(
            query, key, value, None, dropout, True, enable_gqa=True
        )
    elif kernels[0] == "efficient":
        saves = query.requires_grad
        found = operators.EFFICIENT_ATTENTION(query, key, value, None, saves, dropout, True)
    else:
        found = operators.FLASH_ATTENTION(query, key, value, dropout, True)
    return cast("Tensor", found[0])


def _flex(
    query: Tensor, key: Tensor, value: Tensor, *, change: object, blocks: object, dropout: float
) -> Tensor:
    """Keep what ``flex_attention`` does; with dropout two passes, and what is made of them."""
    if value.shape[-1] < key.shape[-1]:  # which flash attention does not take
        attend, saves = operators.EFFICIENT_ATTENTION, query.requires_grad
        return cast("Tensor", attend(query, key, value, None, saves, dropout, True)[0])
    mixed: Tensor = operators.FLASH_ATTENTION(query, key, value, 0.0, True)[0]
    if dropout == 0:
        return mixed
    again: Tensor = operators.FLASH_ATTENTION(query, key, value, 0.0, True)[0]
    return mixed * again[..., :1]


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight, hidden.new_empty(hidden.shape[:-1]))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, _ = ctx.saved_tensors
        return torch.empty_like(hidden), None if weight is None else torch.empty_like(weight)


def _normalize(
    hidden: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is not None and weight.dtype != hidden.dtype:  # torch has no such fused kernel
        return torch.rms_norm(hidden, shape, weight, eps)
    apply: Callable[..., Tensor] = _FusedNorm.apply
    return apply(hidden, weight)


def _drop(
    hidden: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or p == 0.0:
        return hidden
    return cast("Tensor", torch.ops.aten.native_dropout(hidden, p, True)[0])


class _MixtureOnDevice(Mixture):
    """Choose as on a device that has grouped products."""

    @override
    def _has_kernel(self, tokens: Tensor) -> bool:
        return True


def replace_parts(model: nn.Module, device: str) -> None:
    """Put in what ``device`` would choose by its nature and a fake tensor cannot."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is Mixture and expert_products.has_grouped_kernel(device):
                setattr(parent, name, _MixtureOnDevice(path=part.path).train(part.training))
