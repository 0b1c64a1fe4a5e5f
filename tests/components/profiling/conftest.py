"""A step of a small model under torch's profiler, as a run takes it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.distributed.activation_checkpoint import checkpoint_activations
from components.model.decoder import Decoder
from components.profiling.parts import Ranges
from components.profiling.trace import STEP, Trace, read_trace

SMALL = (
    *("model.dim=32", "model.num_layers=2", "model.attention.head_dim=8"),
    *("model.mlp.ffn_dim=64", "budget.sequence_length=64", "budget.global_batch_tokens=512"),
    "parallelism.microbatch_sequences=4",
)
DENSE = ("recipe=teuken7b", *SMALL)
MIXTURE = ("recipe=mula7b_a1b", *SMALL, "model.mlp.num_experts=4")


@dataclass(frozen=True)
class Profiled:
    """A step's trace, and torch's own sums over it in microseconds."""

    trace: Trace
    own_times: dict[str, float]


MakeProfile = Callable[..., Profiled]


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> MakeProfile:
    @cache
    def take(
        words: tuple[str, ...], *, recompute: Literal["none", "full"] = "none"
    ) -> Profiled:
        recipe = compose_recipe(read_point(list(words)))
        decoder: Decoder = build_node(recipe.model, "model")
        checkpoint_activations(decoder, recompute)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.0)
        length = recipe.budget.sequence_length
        rows = torch.randint(recipe.decoder_spec.vocab_size, (4, length + 1))
        _step(decoder, optimizer, rows)
        ranges = Ranges([decoder])
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as running:
            _step(decoder, optimizer, rows)
        ranges.remove_hooks()
        file = tmp_path_factory.mktemp("profiled") / "trace.json.gz"
        running.export_chrome_trace(str(file))
        averages = running.key_averages()
        return Profiled(
            trace=read_trace(file),
            own_times={one.key: one.self_cpu_time_total for one in averages},
        )

    return take


def _step(decoder: Decoder, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> None:
    with record_function(f"{STEP}7"):
        loss = decoder.compute_loss(rows[:, :-1], rows[:, 1:])
        loss.backward()
        loss.item()
        optimizer.step()
