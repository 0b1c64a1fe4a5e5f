"""Activation checkpointing: same names, same gradients, less memory."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from components.errors import RecipeError
from components.model.decoder import Decoder
from components.model.recompute import checkpoint_activations
from tests.components.model.comparison import gradient_of, randomized

Build = Callable[..., Decoder]
CHOICES = ["selective", "full", ["attention"], ["mlp", "norms"], ["norms", "attention", "mlp"]]


def saved_bytes(model: Decoder, tokens: Tensor) -> int:
    """Count what the forward pass keeps for the backward pass, each storage once."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(tokens)
    assert loss.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("parts", CHOICES)
def test_gradients_are_bitwise_equal_and_names_stay(
    small_decoder: Build, parts: str | list[str]
) -> None:
    plain = randomized(small_decoder(dropout=0.2, attention_dropout=0.2))
    model = copy.deepcopy(plain)
    checkpoint_activations(model, parts)
    assert list(model.state_dict()) == list(plain.state_dict())
    tokens = torch.randint(61, (2, 19))
    losses = []
    for one in (plain, model):
        torch.manual_seed(5)  # the second pass through a layer must drop the same again
        loss = one.loss(tokens, tokens)
        torch.autograd.backward(loss)
        losses.append(loss.item())
    assert losses[0] == losses[1]
    theirs = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(gradient_of(parameter), gradient_of(theirs[name])), name


def test_the_more_is_checkpointed_the_less_is_saved(small_decoder: Build) -> None:
    tokens = torch.randint(61, (2, 40))
    sizes = []
    for parts in ("none", ["norms"], ["mlp", "norms"], "full"):
        model = randomized(small_decoder(num_layers=4))
        checkpoint_activations(model, parts)
        sizes.append(saved_bytes(model, tokens))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert sizes[-1] < sizes[0] / 5


def test_evaluation_goes_on_as_before(small_decoder: Build) -> None:
    plain = randomized(small_decoder())
    model = copy.deepcopy(plain)
    checkpoint_activations(model, "full")
    tokens = torch.randint(61, (2, 19))
    with torch.inference_mode():
        assert torch.equal(model(tokens), plain(tokens))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["mpl"], r"parallelism.recompute: 'mpl' is no part of a layer\n.* attention, mlp"),
        (["mlp", "full"], r"'full' is no part"),
        (["mlp", "mlp"], r"parallelism.recompute: 'mlp' is named twice"),
    ],
)
def test_rejects_parts_that_no_layer_has(
    small_decoder: Build, parts: list[str], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        checkpoint_activations(small_decoder(), parts)
