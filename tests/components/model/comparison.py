"""Compare a decoder with a `transformers` model of the same weights, gradients included."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from tests.components.model.mappings import State

# float32 rounds to 6e-8, and a few hundred sums are in different order.
LOGITS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4  # relative to the largest entry

Mapped = Callable[[State], dict[str, Tensor]]


def randomized(model: Decoder) -> Decoder:
    """Initialize, then draw vectors, because a missing vector of 1 or 0 would not show."""
    draw_weights(model, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Count the bytes saved for the backward pass, each storage once and without weights."""
    held: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    kept: list[Tensor] = []  # keeps every address unique
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert forward().requires_grad
    return sum(held.values())


def give_weights(theirs: nn.Module, model: Decoder, mapped: Mapped) -> None:
    """Load exactly our weights; a tied head may be missing."""
    missing = theirs.load_state_dict(mapped(model.state_dict()), strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == (["lm_head.weight"] if model.head is None else [])


def assert_equal_models(
    model: Decoder, theirs: nn.Module, mapped: Mapped, *, sequence_length: int
) -> None:
    """Compare logits, loss and all gradients, in training without dropout."""
    give_weights(theirs, model, mapped)
    tokens = torch.randint(model.vocab_size, (3, sequence_length + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    logits = theirs(inputs, use_cache=False).logits
    assert relative_difference(model(inputs), logits) < LOGITS_TOLERANCE
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model.compute_loss(inputs, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=LOGITS_TOLERANCE)

    torch.autograd.backward([expected, loss])
    gradients = {name: gradient_of(p) for name, p in model.named_parameters()}
    reference = {name: gradient_of(p) for name, p in theirs.named_parameters()}
    ours = mapped(gradients)
    assert set(ours) == set(reference)
    for name, gradient in ours.items():
        largest = reference[name].abs().max()
        if largest < 1e-6:  # a single token: only rounding
            assert gradient.abs().max() < GRADIENT_TOLERANCE, name
        else:
            assert relative_difference(gradient, reference[name]) < GRADIENT_TOLERANCE, name
