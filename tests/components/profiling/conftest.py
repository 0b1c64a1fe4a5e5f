"""A step of a small model under torch's profiler, as a run takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import (
    FlopCounterMode,
    addmm_flop,
    sdpa_backward_flop,
    sdpa_flop,
)

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build
from components.config.recipe import Recipe
from components.distributed.activation_checkpoint import checkpoint_activations
from components.model.decoder import Decoder
from components.profiling.parts import Ranges
from components.profiling.trace import STEP, Trace, read_trace

DENSE = (
    *("recipe=teuken7b", "model.dim=32", "model.num_layers=2", "model.attention.head_dim=8"),
    *("model.mlp.ffn_dim=64", "budget.sequence_length=64", "budget.global_batch_tokens=512"),
    "parallelism.microbatch_sequences=4",
)
MIXTURE = (
    *("recipe=mula7b_a1b", "model.dim=32", "model.num_layers=2"),
    *("model.attention.head_dim=8", "model.mlp.ffn_dim=64", "model.mlp.num_experts=4"),
    *("budget.sequence_length=64", "budget.global_batch_tokens=512"),
    "parallelism.microbatch_sequences=4",
)
aten = torch.ops.aten
_FORMULAS: tuple[tuple[Any, Any], ...] = (
    (aten.addmm_, addmm_flop),
    (aten._scaled_dot_product_flash_attention_for_cpu, sdpa_flop),
    (aten._scaled_dot_product_flash_attention_for_cpu_backward, sdpa_backward_flop),
)


def _mapped(
    inputs: Any, weight: Sequence[int], *others: Any, out_shape: Sequence[int], **named: Any
) -> int:
    """Count two FLOPs for each number that comes out and each term of its sum."""
    return 2 * prod(out_shape) * weight[1]


# By torch's own formulas, which the counter wraps again, where it has one.
UNKNOWN_TO_TORCH = {
    **{operator: formula.__wrapped__ for operator, formula in _FORMULAS},
    torch.ops.mkldnn._linear_pointwise: _mapped,
}


@dataclass(frozen=True)
class Profiled:
    """A step's trace, torch's own sums over it in microseconds, and its FLOPs by torch."""

    trace: Trace
    own_times: dict[str, float]
    flops: int
    recipe: Recipe
    tokens: int


MakeProfile = Callable[..., Profiled]


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> MakeProfile:
    @cache
    def take(
        words: tuple[str, ...],
        *,
        stacks: bool = False,
        recompute: Literal["none", "full"] = "none",
    ) -> Profiled:
        recipe = compose_recipe(read_point(list(words)))
        decoder: Decoder = build(recipe.model, "model")
        checkpoint_activations(decoder, recompute)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.0)
        length = recipe.budget.sequence_length
        rows = torch.randint(recipe.shape.vocab_size, (4, length + 1))
        _step(decoder, optimizer, rows)
        with FlopCounterMode(display=False, custom_mapping=UNKNOWN_TO_TORCH) as counter:
            _step(decoder, optimizer, rows)
        ranges = Ranges([decoder])
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=stacks
        ) as running:
            _step(decoder, optimizer, rows)
        ranges.remove()
        file = tmp_path_factory.mktemp("profiled") / "trace.json.gz"
        running.export_chrome_trace(str(file))
        averages = running.key_averages()
        return Profiled(
            trace=read_trace(file),
            own_times={one.key: one.self_cpu_time_total for one in averages},
            flops=counter.get_total_flops(),
            recipe=recipe,
            tokens=4 * length,
        )

    return take


def _step(decoder: Decoder, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    with record_function(f"{STEP}7"):
        loss = decoder.loss(rows[:, :-1], rows[:, 1:])
        loss.backward()
        loss.item()
        optimizer.step()
