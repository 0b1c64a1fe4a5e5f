"""The mesh engine clips by the global norm in every layout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from components.config.check import check_recipe
from components.distributed.mesh import sum_over_ranks
from components.distributed.pipeline import GradientAccumulation
from components.engine.mesh_engine import MeshEngine
from components.engine.microbatch_forward import StageForward
from components.optim.ademamix import AdEMAMix
from components.optim.loss_scale import LossScale
from components.optim.muon import Muon
from tests.components.distributed.layout_cases import (
    Layout,
    ParallelModel,
    Whole,
    batch_of,
    largest_difference,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import XIELU, Parts, randomized

STEPS, RATE = 3, 0.1
ADAM: dict[str, Any] = {"lr": RATE, "beta1": 0.9, "beta2": 0.95, "eps": 1e-2}
ADAM |= {"weight_decay": 0.1, "decay": "matrices", "clip_norm": 1.0, "clip_after_tokens": 0}
Named = list[tuple[str, nn.Parameter]]


def plain(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for _, one in named], lr=RATE)


def muon(named: Named) -> torch.optim.Optimizer:
    """Make a Muon with a large eps, so that AdamW does not amplify rounding."""
    settings: dict[str, Any] = {"matrix_lr_factor": 1.0, "embedding_lr_factor": 2.0}
    settings |= {"head_lr_factor": 0.5, "momentum": 0.9, "nesterov": True}
    settings |= {"newton_schulz_steps": 5, "update_scale": "match_rms_adamw"}
    return Muon(parameters=named, decay_order="before", **settings, **ADAM)


def ademamix(named: Named) -> torch.optim.Optimizer:
    """Make an AdEMAMix in the middle of its warmups."""
    warmups: dict[str, Any] = {"alpha_warmup_tokens": 1_000, "beta3_warmup_tokens": 2_000}
    optimizer = AdEMAMix(parameters=named, beta3=0.99, alpha=8.0, **warmups, **ADAM)
    optimizer.tokens = 500
    return optimizer


def engine_of(
    sharded: ParallelModel,
    optimizer: Callable[[Named], torch.optim.Optimizer],
    loss_scale: LossScale | None = None,
) -> MeshEngine:
    return MeshEngine(
        mesh=sharded.mesh,
        data_parallel=sharded.parallel,
        microbatches=sharded.microbatches,
        optimizer=optimizer([(shard.name, shard.parameter) for shard in sharded.shards]),
        loss_scale=loss_scale,
    )


def clipped_steps(
    parts: Parts,
    layout: Layout,
    part_of_norm: float,
    optimizer: Callable[[Named], torch.optim.Optimizer] = plain,
    loss_scale: LossScale | None = None,
) -> float:
    """Make steps of an optimizer, each clipped to a fraction of its norm.

    Returns the largest difference of weights from one process.
    """
    model = randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    theirs = optimizer(list(whole.decoder.named_parameters()))
    engine = engine_of(sharded, optimizer, loss_scale)
    apart = 0.0
    for step in range(STEPS):
        batches = [batch_of(step, rank) for rank in range(layout.data)]
        whole.backward(batches)
        gradients = [p.grad for p in whole.decoder.parameters() if p.grad is not None]
        limit = part_of_norm * torch.nn.utils.get_total_norm(gradients).item()
        torch.nn.utils.clip_grad_norm_(whole.decoder.parameters(), limit)
        theirs.step()
        batch = batches[sharded.mesh.data_rank]
        engine.step(batch, lr=RATE, norm_limit=limit, accept_step=_agree)
        apart = max(apart, largest_difference(sharded.weights(), whole.weights()))
    return apart


def _agree(squares: Tensor | None) -> Tensor | None:
    assert squares is not None
    norm: Tensor = sum_over_ranks(squares).sqrt()
    return norm


def resumes_with_its_scale(parts: Parts, layout: Layout) -> bool:
    """Lower a scale by overflows; return whether another engine resumes from its state."""
    settings: dict[str, Any] = {"window": 5, "hysteresis": 1, "minimum": 1.0}
    first, second = (
        engine_of(
            ParallelModel(randomized(parts), layout),
            plain,
            LossScale(initial=2.0**16, **settings),
        )
        for _ in range(2)
    )
    batch, overflow = batch_of(0, torch.distributed.get_rank()), torch.tensor(torch.inf)
    for _ in range(3):
        first.step(batch, lr=RATE, norm_limit=1.0, accept_step=lambda _: overflow)
    state = first.scale_state()
    assert state is not None
    assert first.backward_scale == 2.0**13
    second.load_scale_state(state)
    return second.backward_scale == first.backward_scale and second.scale_state() == state


def count_unequally(
    tree: dict[str, Any], batches: list[Tensor], eod_id: int
) -> tuple[float, float]:
    """Run a rank's batch, and on one process all targets that do not follow ``eod_id``.

    Returns the differences of mean loss and gradients.
    """
    model = randomized(Parts())
    whole, sharded = Whole(model), ParallelModel(model, Layout(shard=len(batches)))
    rows = torch.cat(batches).flatten(0, 1)
    targets = rows[:, 1:].masked_fill(rows[:, :-1] == eod_id, -100)
    expected = cross_entropy(whole.decoder(rows[:, :-1]).flatten(0, 1), targets.flatten())
    torch.autograd.backward(expected)
    batch, device = batches[sharded.mesh.data_rank], torch.device("cpu")
    recipe = check_recipe(tree)
    compute = StageForward(recipe=recipe, mesh=sharded.mesh, device=device, eod_id=eod_id)
    compute.start_step(0, len(batch))
    compute.count_targets(batch)
    sharded.parallel.start_step(len(batch))
    GradientAccumulation(sharded.stages[0], compute).accumulate_gradients(batch, 1 / len(batch))
    sharded.parallel.reduce_gradients()
    loss = sum_over_ranks(compute.share_of_means())[0]
    gap = largest_difference(sharded.gradients(), whole.gradients())
    return abs(loss - expected).item(), gap


# Double precision has 16 digits; sums in another order cost the last ones.
TOLERANCE = 1e-12
LAYOUTS = {
    "zero 0": Layout(shard=2),
    "zero 1": Layout(shard=2, zero=1),
    "zero 2": Layout(shard=2, zero=2),
    "zero 3": Layout(shard=2, zero=3),
    "tensor": Layout(tensor=2),
    "pipeline": Layout(pipeline=2),
    "tensor, zero 1": Layout(tensor=2, shard=2, zero=1),
    "tensor, zero 3": Layout(tensor=2, shard=2, zero=3),
}


@pytest.mark.quick("zero 0", "zero 1", "zero 2", "tensor", "pipeline")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clipped_steps_equal_one_process(run_layout: Callable[..., Any], layout: str) -> None:
    for apart in run_layout(clipped_steps, Parts(tied=True), LAYOUTS[layout], 0.3):
        assert apart < TOLERANCE


@pytest.mark.quick("zero 1", "zero 3", "tensor", "pipeline")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharded_muon_equals_one_process(run_layout: Callable[..., Any], layout: str) -> None:
    parts = Parts(tied=layout in {"tensor", "pipeline"})
    # The iteration amplifies small singular values and their rounding 485 times.
    for apart in run_layout(clipped_steps, parts, LAYOUTS[layout], 0.3, muon):
        assert apart < 1e-9


@pytest.mark.quick("zero 1", "zero 3", "tensor", "pipeline")
@pytest.mark.parametrize("layout", [*list(LAYOUTS)[1:6], "tensor, zero 3"])
def test_sharded_ademamix_equals_one_process(run_layout, layout):
    parts = Parts(mlp=XIELU)  # some ranks have no part of its scalars
    for apart in run_layout(clipped_steps, parts, LAYOUTS[layout], 0.3, ademamix):
        assert apart < 1e-11


def test_a_loss_scale_changes_no_step(two_ranks: Ranks) -> None:
    scale = LossScale(initial=2.0**10, window=5, hysteresis=1, minimum=1.0)
    for apart in two_ranks(clipped_steps, Parts(), LAYOUTS["zero 1"], 0.3, plain, scale):
        assert apart < TOLERANCE


def test_a_loss_scale_resumes_from_its_state(two_ranks: Ranks) -> None:
    assert two_ranks(resumes_with_its_scale, Parts(), LAYOUTS["zero 1"]) == [True, True]
