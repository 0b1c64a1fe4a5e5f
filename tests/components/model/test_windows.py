"""Windows by layer: what a query sees, who shares it, and how its layers are turned."""

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from components.attention_backends import BACKENDS
from components.attention_windows import window_of
from components.config.model_spec.positions import AlibiSpec, RotarySpec
from components.config.model_spec.rotary_scaling import LinearScalingSpec, YarnScalingSpec
from components.config.part_nodes import check_nodes
from components.errors import RecipeError
from components.model.attention import AttentionContext, AttentionCore
from components.model.decoder import Decoder
from components.model.positions import Rotary
from tests.components.model.comparison import randomized, relative_difference
from tests.components.model.flex_on_cpu import flex_on_cpu
from tests.components.model.mixers.builders import build_scope
from tests.components.model.specs import ROTARY, small_decoder
from tests.components.model.test_masks import packed

LENGTH = 20
YARN = YarnScalingSpec(factor=4.0, original_tokens=8, beta_fast=1.0, beta_slow=0.03)


def test_a_pattern_of_windows_repeats() -> None:
    windows = [window_of([7, 5, "full"], layer) for layer in range(7)]
    assert windows == [7, 5, None, 7, 5, None, 7]


ATTENTION: dict[str, Any] = {
    "_target_": "components.model.attention.Attention",
    "_partial_": True,
}
ATTENTION |= {"num_heads": 2, "num_kv_heads": 2, "head_dim": 2, "bias": False, "qk_norm": None}


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([], r"windows: the list is empty\n  list windows from layer 0"),
        ([8, "half"], r"windows\[1\]: 'half' is neither a positive number of keys nor full"),
        ([0, "full"], r"windows\[0\]: 0 is neither"),
        ([True], r"windows\[0\]: True is neither"),
    ],
)
def test_an_invalid_window_is_refused(windows: list[object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_nodes({"model": {"attention": {**ATTENTION, "windows": windows}}})


@pytest.mark.parametrize("window", [1, 3, LENGTH - 1])
def test_a_query_sees_the_keys_of_its_window(window: int) -> None:
    core = AttentionCore(dropout=0.0, backends=BACKENDS)
    scope = build_scope(length=LENGTH)
    zeros, unit = torch.zeros(2, 3, LENGTH, LENGTH), torch.eye(LENGTH).expand(2, 3, -1, -1)
    for kernels in (nullcontext, flex_on_cpu):
        with kernels():
            mixed = core(zeros, zeros, unit, scope.for_window(window), first_head=0)
        for query in range(LENGTH):
            first = max(query - window + 1, 0)
            expected = torch.zeros(LENGTH)
            expected[first : query + 1] = 1 / (query + 1 - first)
            torch.testing.assert_close(mixed[1, 2, query], expected)


@pytest.mark.quick("whole-rotary", "documents-alibi")
@pytest.mark.parametrize("kind", [ROTARY, AlibiSpec()], ids=["rotary", "alibi"])
@pytest.mark.parametrize(
    "documents", [None, packed([[5, 1, 14], [9, 10, 1]])], ids=["whole", "documents"]
)
def test_flex_and_dense_masks_agree_in_every_layer(kind, documents):
    windows = [4, "full", 7]
    model = randomized(small_decoder(positions=kind, num_layers=4, windows=windows)).double()
    tokens = torch.randint(61, (2, LENGTH))
    expected = model.compute_loss(tokens, tokens, documents=documents)
    wanted = torch.autograd.grad(expected, [*model.parameters()])
    with flex_on_cpu():
        loss = model.compute_loss(tokens, tokens, documents=documents)
        found = torch.autograd.grad(loss, [*model.parameters()])
    torch.testing.assert_close([loss, *found], [expected, *wanted], rtol=1e-9, atol=1e-11)


def test_windows_of_all_layers_add_up() -> None:
    """Two layers with windows of 4 and 6 reach 3 + 5 tokens back."""
    model = randomized(small_decoder(windows=(4, 6)))
    tokens = torch.randint(61, (1, LENGTH))
    changed = tokens.clone()
    changed[0, 3] = (changed[0, 3] + 1) % 61
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    reached = 3 + 3 + 5
    assert difference[:3].max() == 0
    assert difference[3 : reached + 1].min() > 0
    assert difference[reached + 1 :].max() == 0


def test_a_window_as_long_as_the_sequence_is_plain_attention() -> None:
    plain = randomized(small_decoder())
    long = small_decoder(windows=(LENGTH,))
    long.load_state_dict(plain.state_dict())
    tokens = torch.randint(61, (2, LENGTH))
    plain_calls, long_calls = masks_given(plain, tokens), masks_given(long, tokens)
    assert plain_calls == long_calls == [True, True]
    assert torch.equal(long(tokens), plain(tokens))
    assert masks_given(long, torch.randint(61, (2, LENGTH + 1))) == [False, False]


def masks_given(model: Decoder, tokens: Tensor) -> list[bool]:
    """Return for each layer whether its kernel got no mask."""
    plain = []

    def noted(*given: Tensor, mask: Tensor | None, **named: object) -> Tensor:
        plain.append(mask is None)
        return given[0]

    with patch("components.model.attention_kernels.scaled_dot_product", noted):
        model(tokens)
    return plain


def test_layers_with_a_window_rotate_by_the_unscaled_local_base() -> None:
    places, heads = torch.arange(LENGTH), torch.randn(2, LENGTH, 6, 10)

    def rotary(**settings: Any) -> Rotary:
        return Rotary(RotarySpec(**settings), dim=48, num_heads=6, head_dim=10)

    turned = rotary(base=1_000.0, scaling=YARN, local_base=100.0)
    scope = AttentionContext(encoding=turned(places), documents=None)
    for window, alone in (
        (None, rotary(base=1_000.0, scaling=YARN)),
        (4, rotary(base=100.0)),
        (LENGTH, rotary(base=100.0)),  # hides no key, but is a window
    ):
        wanted = AttentionContext(encoding=alone(places), documents=None).apply_rope(heads)
        assert torch.equal(scope.for_window(window).apply_rope(heads), wanted)
    assert scope.for_window(LENGTH).is_plain_causal
    assert not scope.for_window(4).is_plain_causal


def test_without_a_local_base_all_layers_rotate_alike() -> None:
    slowed = RotarySpec(base=10_000.0, scaling=LinearScalingSpec(factor=8.0))
    model = randomized(small_decoder(positions=slowed, windows=(LENGTH, "full")))
    plain = small_decoder(positions=slowed)
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(61, (2, LENGTH))
    assert torch.equal(model(tokens), plain(tokens))
    local = small_decoder(
        positions=slowed.model_copy(update={"local_base": 10_000.0}), windows=(LENGTH, "full")
    )
    local.load_state_dict(model.state_dict())
    assert relative_difference(local(tokens), plain(tokens)) > 0.01
