"""Experts in compiled layers use one graph for any distribution of tokens."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from components.config.model_spec.feed_forward import ExpertsSpec
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.compile import compile_layers
from components.model import moe
from components.model.expert_products import has_grouped_kernel
from components.model.moe import Experts
from tests.components.model.comparison import randomized
from tests.components.model.specs import experts_spec, small_decoder
from tests.components.model.test_compiling import compare

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, as in test_compiling

NUM_EXPERTS, DIM, FFN_DIM, TOKENS = 4, 16, 24, 24


def mixture(**changes: Any) -> ExpertsSpec:
    return experts_spec(
        **{"ffn_dim": FFN_DIM, "auxiliary_loss": 0.01, "z_loss": 0.001} | changes
    )


@pytest.fixture(autouse=True)
def _count_from_zero(_forget_what_was_compiled: None) -> None:
    counters.clear()


def falling_on(favourites: Sequence[int]) -> Tensor:
    """Draw tokens that prefer these experts; the router weight is the unit matrix."""
    hidden = torch.rand(1, TOKENS, DIM)
    hidden[:, :, list(favourites)] += 3
    return hidden.requires_grad_()


@pytest.mark.long
@pytest.mark.parametrize("gated", [True, False])
def test_a_layer_of_experts_is_one_graph_for_any_load(monkeypatch, gated):
    monkeypatch.setattr(moe, "has_grouped_kernel", lambda device: True)
    layer = Experts(mixture(gated=gated), dim=DIM).bfloat16()
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(NUM_EXPERTS, DIM))
    compiled = torch.compile(layer.forward, fullgraph=True, dynamic=False, backend="aot_eager")
    loads: list[list[float]] = []
    for favourites in ([0, 1], [2, 3], [], [1, 2]):
        hidden = falling_on(favourites).bfloat16().detach().requires_grad_()
        stance = "fail_on_recompile" if loads else "default"
        with torch.compiler.set_stance(stance):
            mixed = compiled(hidden)
            routing = layer.take_routing()
            found = [mixed, *gradients(mixed, hidden, layer)]
        plain = layer(hidden)
        expected = [plain, *gradients(plain, hidden, layer)]
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 3e-2 * other.abs().max()
        assert routing is not None
        loads.append(routing.counts.tolist())
    assert loads[0] == [TOKENS, TOKENS, 0, 0]
    assert loads[1] == [0, 0, TOKENS, TOKENS]
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def gradients(mixed: Tensor, hidden: Tensor, layer: Experts) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(
        mixed, [hidden, *layer.parameters()], torch.randn(mixed.shape).to(mixed.dtype)
    )


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "selective", "full", ["mlp"]], ids=str)
@pytest.mark.parametrize("path", ["auto", "loop"])
def test_compiled_experts_keep_losses_gradients_and_router_counts(recompute, path):
    plain = randomized(small_decoder(mlp=mixture(path=path), num_layers=3)).double()
    model = copy.deepcopy(plain)
    checkpoint_activations(model, recompute, compiled=True)
    compile_layers(model, "layers", recompute=recompute)
    compare(plain, model, torch.randint(61, (2, 19)))
    # Without grouped products on a CPU the graph is split at the experts.
    assert counters["stats"]["unique_graphs"] == 2


def test_a_recomputed_compiled_layer_keeps_the_first_record() -> None:
    experts = Experts(mixture(), dim=DIM)
    hidden = falling_on([0, 1])
    experts(hidden)
    first = experts.take_routing()
    records: list[None] = []

    def forward(given: Tensor) -> Tensor:
        experts.routing = None  # like a graph, which can only write it
        records.append(None)
        return given.square()

    repeatable = moe.forgets_repetitions(forward, [experts])
    squared = checkpoint(repeatable, hidden, use_reentrant=False)
    experts.routing = first
    squared.sum().backward()
    assert len(records) == 2
    assert experts.routing is first


def test_a_graph_can_check_for_grouped_products() -> None:
    def ask(given: Tensor) -> Tensor:
        return given + 1 if has_grouped_kernel("xpu") else given - 1

    compiled = torch.compile(ask, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(1)) == ask(torch.zeros(1))
