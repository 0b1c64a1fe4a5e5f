"""Activation checkpointing: same names, same gradients, less memory."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy

from components.distributed.activation_checkpoint import (
    Parts,
    checkpoint_activations,
    policy_of,
)
from components.distributed.pipeline import prune_to_stage
from components.errors import RecipeError
from components.model.decoder import Decoder
from tests.components.model.comparison import gradient_of, randomized, saved_bytes
from tests.components.model.operators_seen import DEAR, Operators
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import small_decoder
from tests.components.model.test_compiling import FEW_EXPERTS

CHOICES = ["selective", "full", ["attention"], ["mlp", "norms"], ["norms", "attention", "mlp"]]


def assert_same_bits(
    plain: Decoder, model: Decoder, loss_of: Callable[[Decoder], Tensor]
) -> None:
    losses = []
    for one in (plain, model):
        torch.manual_seed(5)  # the same dropout in both models
        loss = loss_of(one)
        torch.autograd.backward(loss)
        losses.append(loss.item())
    assert losses[0] == losses[1]
    theirs = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(gradient_of(parameter), gradient_of(theirs[name])), name


@pytest.mark.parametrize("norm_placement", ["before", "after", "both"])
@pytest.mark.parametrize("parts", CHOICES)
def test_recomputation_changes_no_bit_of_a_gradient_and_no_name(parts, norm_placement):
    drops = {"dropout": 0.2, "attention_dropout": 0.2}
    plain = randomized(small_decoder(**drops, norm_placement=norm_placement))
    model = copy.deepcopy(plain)
    checkpoint_activations(model, parts)
    assert list(model.state_dict()) == list(plain.state_dict())
    tokens = torch.randint(61, (2, 19))
    assert_same_bits(plain, model, lambda one: one.compute_loss(tokens, tokens))


@pytest.mark.parametrize("path", ["loop", "auto", "grouped"])
@pytest.mark.parametrize("parts", ["selective", "full", ["mlp"]], ids=str)
def test_recomputed_experts_get_the_same_tokens(path: str, parts: str | list[str]) -> None:
    plain = randomized(
        small_decoder(dropout=0.2, mlp=FEW_EXPERTS.model_copy(update={"path": path}))
    )
    model = copy.deepcopy(plain)
    checkpoint_activations(model, parts)
    tokens = torch.randint(61, (2, 19))

    def loss_of(one: Decoder) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):  # the dtype of grouped products
            loss = one.compute_loss(tokens, tokens)
        return loss + auxiliary_terms(one)[0]

    assert_same_bits(plain, model, loss_of)


PARTS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"norm_placement": "after"},
    {"norm_placement": "both"},
    {"output_gate": True},
    {"sinks": True},
    *({"path": path} for path in ("loop", "auto", "grouped")),
    {"path": "auto", "shared_ffn_dim": 6, "shared_gate": True},
]
# Other dtypes have other kernels of products and experts.
OF_DTYPES = [
    *((part, torch.float32) for part in PARTS),
    *(
        (part, dtype)
        for part in (PARTS[0], *PARTS[-4:])
        for dtype in (torch.bfloat16, torch.float64)
    ),
]


@pytest.mark.parametrize(("part", "dtype"), OF_DTYPES, ids=str)
def test_selective_recomputation_repeats_no_product_and_no_attention(part, dtype):
    if "path" in part:
        part = {"mlp": FEW_EXPERTS.model_copy(update=part)}
    counts = []
    for parts in ("none", "selective", "full"):
        model = randomized(small_decoder(dropout=0.1, **part))
        if dtype == torch.float64:
            model = model.double()
        checkpoint_activations(model, cast("Parts", parts))
        tokens = torch.randint(61, (2, 16))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model.compute_loss(tokens, tokens)
        with Operators(DEAR) as seen:
            torch.autograd.backward(loss)
        counts.append(seen.counts)
    none, selective, full = counts
    assert selective == none
    assert full.total() > none.total()


@pytest.mark.parametrize("parts", ["selective", "full", ["mlp"]], ids=str)
def test_every_third_layer_of_the_whole_model_is_recomputed_in_every_stage(parts):
    whole = small_decoder(num_layers=8)
    for layers in (range(8), range(2, 8), range(4)):
        stage = copy.deepcopy(whole)
        prune_to_stage(stage, layers, first=layers[0] == 0, last=layers[-1] == 7)
        plain = [len(_hooks(layer)) for layer in stage.layers.values()]
        checkpoint_activations(stage, parts, every=3)
        more = [len(_hooks(layer)) for layer in stage.layers.values()]
        chosen = [index for index, a, b in zip(layers, plain, more, strict=True) if b > a]
        assert chosen == [index for index in layers if index % 3 == 0]


def _hooks(layer: nn.Module) -> list[Any]:
    return [hook for one in layer.modules() for hook in one._forward_pre_hooks.values()]


def test_attention_with_dropout_is_recomputed() -> None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention.default
    query = torch.empty(1, 1, 2, 2)
    kept = CheckpointPolicy.MUST_SAVE
    assert policy_of(None, kernel, query, query, query, 0.0, True) is kept
    assert policy_of(None, kernel, query, query, query, is_causal=True) is kept
    assert policy_of(None, kernel, query, query, query, 0.1, True) is not kept
    assert policy_of(None, kernel, query, query, query, dropout_p=0.1) is not kept


def test_the_more_is_checkpointed_the_less_is_saved() -> None:
    tokens = torch.randint(61, (2, 40))
    sizes = []
    for parts in ("none", ["norms"], ["mlp"], ["mlp", "norms"], "full"):
        model = randomized(small_decoder(num_layers=4))
        checkpoint_activations(model, parts)
        sizes.append(saved_bytes(model, partial(model, tokens)))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert sizes[-1] < sizes[0] / 5


@pytest.mark.parametrize("norm_placement", ["before", "both"])
def test_a_norm_before_a_recomputed_part_stores_no_output(norm_placement: str) -> None:
    """Two parts of two layers each save one float32 tensor of 2 x 40 tokens less."""
    tokens, sizes = torch.randint(61, (2, 40)), []
    for parts in (["attention", "mlp"], ["attention", "mlp", "norms"]):
        model = randomized(small_decoder(num_layers=2, norm_placement=norm_placement))
        checkpoint_activations(model, parts)
        sizes.append(saved_bytes(model, partial(model, tokens)))
    (weight,) = [w for name, w in model.named_parameters() if name == "embedding.weight"]
    outputs = 2 * 2 * tokens.numel() * weight.shape[1] * 4
    assert sizes[0] - sizes[1] >= outputs


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["mpl"], r"parallelism.recompute: unknown part of a layer 'mpl'\n.* attention, mlp"),
        (["mlp", "full"], r"of a layer 'full'"),
        (["mlp", "mlp"], r"parallelism.recompute: 'mlp' is listed twice"),
    ],
)
def test_rejects_parts_that_no_layer_has(parts: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        checkpoint_activations(small_decoder(), parts)
