"""Compiled layers: the same losses and gradients, one compilation for all layers."""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from components.errors import RecipeError
from components.model.checkpointing import checkpoint_activations
from components.model.compiling import compile_layers
from components.model.decoder import Decoder
from components.model.moe import Experts, auxiliary_terms, expert_layers
from components.model.positions import Alibi
from tests.components.model.comparison import gradient_of, randomized

# Torch's compiler warns of its own imports and inner workings, and hides that from whoever has
# not made warnings errors.
pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, as said above

Build = Callable[..., Decoder]
FEW_EXPERTS = partial(
    Experts,
    num_experts=4,
    top_k=2,
    ffn_dim=24,
    activation="silu",
    gated=True,
    renormalize=False,
    routing="learned",
    auxiliary_loss=0.01,
    auxiliary_scope="model",
    z_loss=0.0,
    path="grouped",
)


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compare(plain: Decoder, model: Decoder, tokens: Tensor) -> None:
    """Hold losses and gradients of both together, to what another order of sums explains."""
    losses = []
    for one in (plain, model):
        torch.manual_seed(5)
        loss = one.loss(tokens, tokens)
        penalty, _ = auxiliary_terms(one)
        loss = loss + penalty
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        assert all(layer.take_routing() is None for layer in expert_layers(one))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0.0)
    theirs = dict(plain.named_parameters())
    assert list(theirs) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        expected = gradient_of(theirs[name])
        torch.testing.assert_close(
            gradient_of(parameter),
            expected,
            rtol=1e-9,
            atol=1e-12 * expected.abs().max().item(),
        )


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_losses_and_gradients_stay_with_dropout_and_recomputation_too(
    small_decoder: Build, recompute: str
) -> None:
    plain = randomized(small_decoder(dropout=0.2, attention_dropout=0.2)).double()
    model = copy.deepcopy(plain)
    checkpoint_activations(model, "full" if recompute == "full" else "none")
    compile_layers(model, "layers")
    compare(plain, model, torch.randint(61, (2, 19)))
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.long
@pytest.mark.parametrize("part", [{"positions": Alibi}, {"mlp": FEW_EXPERTS}])
def test_discounts_and_experts_compile_too(
    small_decoder: Build, part: dict[str, object]
) -> None:
    plain = randomized(small_decoder(**part)).double()
    model = copy.deepcopy(plain)
    compile_layers(model, "layers")
    compare(plain, model, torch.randint(61, (2, 19)))
    assert counters["stats"]["unique_graphs"] > 0


def test_twice_as_many_layers_are_compiled_no_more_often(small_decoder: Build) -> None:
    graphs = []
    for num_layers in (2, 4):
        torch._dynamo.reset()
        counters.clear()
        model = small_decoder(num_layers=num_layers)
        compile_layers(model, "layers")
        with torch.no_grad():
            model(torch.randint(61, (1, 7)))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 1]


def test_none_leaves_the_layers_as_they_are(small_decoder: Build) -> None:
    model = small_decoder()
    compile_layers(model, "none")
    assert all("forward" not in vars(layer) for layer in model.layers.values())


def test_a_machine_without_a_compiler_is_told_at_once(
    small_decoder: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RecipeError, match="has no no-such-compiler") as caught:
        compile_layers(small_decoder(), "layers")
    assert "parallelism.compile=none" in caught.value.remedy
