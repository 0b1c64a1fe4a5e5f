"""The auxiliary terms, against transformers and against their formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

from components.model.moe import Experts, expert_layers, take_rows
from components.model.routing import RoutingTally
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import experts_spec

DIM, NUM_EXPERTS, TOP_K, NUM_LAYERS = 16, 6, 2, 3


class Layers(nn.Module):
    """Consecutive layers of experts with a residual stream."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = {"num_experts": NUM_EXPERTS, "ffn_dim": 8, "auxiliary_loss": 0.25}
        spec = experts_spec(**settings | changes)
        self.parts = nn.ModuleList(Experts(spec, dim=DIM) for _ in range(NUM_LAYERS))
        with torch.no_grad():
            for part in self.parts:
                part.get_parameter("router.weight").mul_(6)  # far from balance

    def forward(self, hidden: Tensor) -> Tensor:
        for part in self.parts:
            hidden = hidden + part(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> tuple[Tensor, ...]:
        collected = []
        for part in self.parts:
            collected.append(part.get_submodule("router")(hidden.flatten(0, 1)))
            hidden = hidden + part(hidden)
        return tuple(collected)


class CheckpointedLayers(Layers):
    def forward(self, hidden: Tensor) -> Tensor:
        for part in self.parts:
            hidden = hidden + checkpoint(part, hidden, use_reentrant=False)
        return hidden


def reference_balance(logits: Any) -> Tensor:
    return torch.as_tensor(load_balancing_loss_func(logits, NUM_EXPERTS, TOP_K))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_pooled_balance_is_the_loss_of_transformers_with_its_gradients() -> None:
    model, hidden = Layers(), torch.randn(2, 9, DIM)
    model(hidden)
    ours, _ = auxiliary_terms(model)
    ours_gradients = gradients(model, ours)
    reference = reference_balance(model.logits(hidden))
    torch.testing.assert_close(ours, 0.25 * reference, rtol=1e-6, atol=1e-6)
    for one, other in zip(ours_gradients, gradients(model, 0.25 * reference), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_balance_by_layer_is_the_sum_of_the_layers_losses() -> None:
    model, hidden = Layers(auxiliary_scope="layer"), torch.randn(2, 9, DIM)
    model(hidden)
    ours, _ = auxiliary_terms(model)
    collected = model.logits(hidden)
    losses = torch.stack([reference_balance((logits,)) for logits in collected])
    torch.testing.assert_close(ours, 0.25 * losses.sum(), rtol=1e-6, atol=1e-6)
    # The layers' loads differ, so the pooled load is more even.
    assert losses.mean() > 1.05 * reference_balance(collected)


def test_perfect_balance_costs_top_k() -> None:
    model = Layers(routing="uniform")
    with torch.no_grad():
        for part in model.parts:
            part.get_parameter("router.weight").zero_()
    model(torch.randn(1, NUM_EXPERTS * 4, DIM))
    loss, load = auxiliary_terms(model)
    assert loss.item() == pytest.approx(0.25 * TOP_K)
    assert load["largest_over_mean"].item() == 1.0
    expected = torch.full((NUM_LAYERS, NUM_EXPERTS), TOP_K / NUM_EXPERTS)
    torch.testing.assert_close(load["expert_fraction"], expected)


def test_the_z_loss_is_the_mean_square_of_the_log_sums() -> None:
    model, hidden = Layers(auxiliary_loss=0.0, z_loss=0.5), torch.randn(1, 4, DIM)
    model(hidden)
    loss, load = auxiliary_terms(model)
    squares = [
        math.log(sum(math.exp(x) for x in row)) ** 2
        for logits in model.logits(hidden)
        for row in logits.tolist()
    ]
    assert load["z_loss"].item() == pytest.approx(sum(squares) / 4, rel=1e-5)
    assert loss.item() == pytest.approx(0.5 * sum(squares) / 4, rel=1e-5)


def test_the_load_counts_the_tokens_that_reach_each_expert() -> None:
    model, hidden = Layers(), torch.randn(2, 7, DIM)
    model(hidden)
    _, load = auxiliary_terms(model)
    worst = 0.0
    for index, logits in enumerate(model.logits(hidden)):
        chosen = logits.topk(TOP_K).indices.flatten().tolist()
        counts = [chosen.count(expert) for expert in range(NUM_EXPERTS)]
        assert load["expert_fraction"][index].tolist() == pytest.approx([
            count / 14 for count in counts
        ])
        worst = max(worst, max(counts) / (14 * TOP_K / NUM_EXPERTS))
    assert load["largest_over_mean"].item() == pytest.approx(worst)


def test_dropped_pairs_are_summed_over_layers_and_stages() -> None:
    model = Layers()
    model(torch.randn(2, 9, DIM))
    rows = take_rows(expert_layers(model))
    assert rows is not None
    assert RoutingTally.from_rows(rows).pooled.beyond.item() == 0
    expert_layers(model)[0].mixture.beyond = torch.tensor(3)
    model(torch.randn(2, 9, DIM))
    rows = take_rows(expert_layers(model))
    assert rows is not None
    tally = RoutingTally.from_rows(rows)
    assert len(tally.to_row()) == RoutingTally.count_row_numbers(NUM_EXPERTS)
    assert tally.add_earlier(tally.to_row().detach()).pooled.beyond.item() == 6


def test_checkpointing_changes_neither_the_terms_nor_the_gradients() -> None:
    results = []
    for kind in (Layers, CheckpointedLayers):
        model, collected = kind(z_loss=0.1), []
        model.zero_grad()
        for seed in range(3):  # microbatches
            torch.manual_seed(seed)
            output = model(torch.randn(1, 8, DIM))
            terms, load = auxiliary_terms(model)
            (output.square().mean() + terms).backward()
            collected += [terms.detach(), load["expert_fraction"]]
            # The recomputation leaves no record and keeps no tensor alive.
            assert auxiliary_terms(model)[1] == {}
        results.append(collected + [p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_terms_are_taken_once_after_each_forward_pass_in_training() -> None:
    model = Layers()
    model(torch.randn(1, 5, DIM))
    first, load = auxiliary_terms(model)
    assert first.item() > 0
    assert load["expert_fraction"].shape == (NUM_LAYERS, NUM_EXPERTS)
    model.eval()(torch.randn(1, 5, DIM))
    for without in (model, nn.Linear(2, 2)):
        again, nothing = auxiliary_terms(without)
        assert (again.item(), nothing) == (0.0, {})


def test_checkpointing_that_loses_the_router_graph_is_noticed() -> None:
    model, hidden = Layers(), torch.randn(1, 5, DIM, requires_grad=True)
    for part in model.parts:
        hidden = hidden + checkpoint(part, hidden, use_reentrant=True)
    with pytest.raises(AssertionError, match="use_reentrant=False"):
        auxiliary_terms(model)
