"""Fake world: one rank with a fake process group and fake tensors (without values).

Fake tensors are CPU tensors, and CPU kernels save more memory for the backward pass than GPU
kernels. So stand-ins allocate and save the same tensors as the GPU's kernels:

    attention    the first supported kernel of the recipe's order; flex and cuDNN save the same
                 as flash attention, ``math`` is torch's formula
    RMSNorm      the fused kernel: saves its input and one number per vector
    dropout      the fused kernel: saves one byte per number
    experts      grouped products if the layer uses them, else expert by expert
    Adam         the update of all parameters at once
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
from components.dryrun.trackers import OperatorWatch
from components.engine.mesh_engine import MeshEngine
from components.engine.parallelize import RankModel, allocate_stages, parallelize_model
from components.model import attention, attention_kernels, expert_products, linear, softmax
from components.model.moe import Mixture
from components.torch_internals import operators
from components.train import module
from components.train.batches import StepBatch
from components.train.module import Pretraining
from components.train.step_metrics import ReducedMetrics, reduce_step_metrics
from components.train.trainer import MeshStrategy


@contextmanager
def fake_world(rank: int, ranks: int) -> Iterator[None]:
    """Create a fake process group of ``ranks``: collectives return immediately."""
    dist.init_process_group("fake", store=operators.FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class FakeScalars(OperatorWatch):
    """Mode that returns 1 or True when code reads a number from a fake tensor.

    A training step reads a microbatch's number, the norm, and reduced flags; torch's pipelines
    read whether all stages know the shapes of their messages.
    """

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is not operators.READ_NUMBER.default:
            return func(*args, **kwargs)
        dtype = args[0].dtype
        return dtype is torch.bool or (1.0 if dtype.is_floating_point else 1)


class _WideSums(OperatorWatch):
    """Mode for a product added to a wider sum, which torch 2.11's fake tensors lack."""

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs["out"] if func is operators.ADD_TO_WIDER else func(*args, **kwargs)


def trainer_of(recipe: Recipe) -> Trainer:
    """Return a trainer with the mesh of the default group; it does not train."""
    warnings.filterwarnings("ignore", message="GPU available but not used")  # no training
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
    """Return a step's batch of tokens without values."""
    sequences, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    return StepBatch(torch.empty(microbatches, sequences, length + 1, dtype=torch.int64))


class FakeRank(Pretraining):
    """The module of a run with weights in ``fake`` mode, on the mesh of the default group."""

    engine: MeshEngine
    microbatches: Microbatches

    def __init__(self, *, recipe: Recipe, fake: operators.FakeTensorMode) -> None:
        super().__init__(recipe=recipe, eod_id=0)
        self._fake = fake
        self.trainer = trainer_of(recipe)

    @override
    def build_model(self) -> RankModel:
        device = torch.device(device_type(self.recipe.cluster.device))
        model = parallelize_model(self.recipe, self.parallel_mesh, device=device)
        with self._fake:
            allocate_stages(model, device=torch.device("cpu"))
        return model

    @override
    def make_microbatches(self) -> Microbatches:
        self.microbatches = super().make_microbatches()
        return self.microbatches


@contextmanager
def device_kernels(kind: str) -> Iterator[None]:
    """Replace CPU kernels by stand-ins for a GPU type, and use that GPU's block sizes.

    Functions are patched by name because torch's function mode is off in a recomputation.
    """
    with (
        _WideSums(),
        patch.object(attention, "device_kind", lambda tensor: kind),
        patch.object(attention_kernels, "attend_equal_widths", _attend),
        patch.object(attention_kernels, "attend_with_flex", _flex),
        patch.object(F, "rms_norm", _normalize),
        patch.object(F, "dropout", _drop),
        patch.object(softmax, "BLOCKS", {}),
        patch.object(linear, "adds_wide", lambda device, dtype: True),
    ):
        yield


@contextmanager
def even_load() -> Iterator[None]:
    """Return equal token counts for all experts when the host reads these counts."""

    def even_pairs(experts: Tensor, expert: int, *, num_experts: int) -> tuple[Tensor, Tensor]:
        share = experts.flatten()[: experts.numel() // num_experts]
        return share, share

    def reduce_evenly(*given: Any, **named: Any) -> ReducedMetrics:
        return replace(reduce_step_metrics(*given, **named), overflow_pairs=0.0)

    with (
        patch.object(expert_products, "on_host", lambda counts, *, even: list(even)),
        patch.object(expert_products, "pairs_of", even_pairs),
        patch.object(module, "reduce_step_metrics", reduce_evenly),
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
    """Call the attention operator of the first kernel."""
    assert mask is None, "a GPU's kernels get no dense mask"
    if kernels[0] == "math":
        outputs = operators.MATH_ATTENTION(
            query, key, value, None, dropout, True, enable_gqa=True
        )
    elif kernels[0] == "efficient":
        saves = query.requires_grad
        outputs = operators.EFFICIENT_ATTENTION(query, key, value, None, saves, dropout, True)
    else:
        outputs = operators.FLASH_ATTENTION(query, key, value, dropout, True)
    return cast("Tensor", outputs[0])


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    change: object,
    blocks: object,
    dropout: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Save the tensors of ``flex_attention``; with dropout, of two passes and their product.

    With sinks, a single pass also saves its product with the share of the keys.
    """
    if value.shape[-1] < key.shape[-1]:  # flash attention does not support this
        attend, saves = operators.EFFICIENT_ATTENTION, query.requires_grad
        return cast("Tensor", attend(query, key, value, None, saves, dropout, True)[0])
    mixed, log_sums, *_ = operators.FLASH_ATTENTION(query, key, value, 0.0, True)
    share = log_sums[..., None]
    if dropout > 0:
        share = operators.FLASH_ATTENTION(query, key, value, 0.0, True)[0][..., :1]
    elif sinks is None:
        return cast("Tensor", mixed)
    if sinks is not None:
        share = torch.sigmoid(share - sinks[:, None, None])
    return cast("Tensor", mixed * share.to(mixed.dtype))


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
    """Mixture that chooses the path of a device with grouped products."""

    @override
    def _has_kernel(self, tokens: Tensor) -> bool:
        return True


def replace_parts(model: nn.Module, device: str) -> None:
    """Replace modules that choose by the tensor's device; fake tensors are on the CPU."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is Mixture and expert_products.has_grouped_kernel(device):
                setattr(parent, name, _MixtureOnDevice(path=part.path).train(part.training))
