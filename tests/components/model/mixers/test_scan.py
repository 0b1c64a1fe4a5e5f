"""Chunked scans, against a loop over tokens, with documents and uneven lengths."""

import pytest
import torch
from torch import Tensor

from components.model.mixers.scan import scan_delta_rule, scan_linear

CHUNK, TOLERANCE = 16, 1e-12


def scan_tokens(
    tokens: tuple[Tensor, ...], step: Tensor | None, resets: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the recurrence token by token; with a ``step``, the delta rule."""
    query, key, value, log_decay = tokens
    outputs = []
    for t in range(query.shape[-2]):
        if resets is not None:
            state = state.masked_fill(resets[:, t, None, None, None, None], 0.0)
        state = state * log_decay[..., t, :, None].exp()
        k, written = key[..., t, :, None], value[..., t, :]
        if step is not None:
            written = step[..., t, :] * (written - (state * k).sum(-2))
        state = state + k * written[..., None, :]
        outputs.append((state * query[..., t, :, None]).sum(-2))
    return torch.stack(outputs, -2), state


def draw_tokens(length: int, *, heads: int, channels: int) -> tuple[Tensor, ...]:
    torch.manual_seed(length)
    query, key = torch.nn.functional.normalize(
        torch.randn(2, 2, 3, 1, length, 8, dtype=torch.float64), dim=-1
    )
    value = torch.randn(2, 3, heads, length, 6, dtype=torch.float64)
    decay = -3 * torch.rand(2, 3, heads, length, channels, dtype=torch.float64)
    return query, key, value, decay


@pytest.mark.parametrize("channels", [1, 8], ids=["head", "channel"])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("length", [1, 15, 32, 45])
def test_scan_equals_loop_over_tokens(length: int, documents: bool, channels: int) -> None:
    heads = 2 if channels == 1 else 1
    tokens = draw_tokens(length, heads=heads, channels=channels)
    step = 2 * torch.rand(2, 3, heads, length, 1, dtype=torch.float64)
    resets = torch.rand(2, length) < 0.1 if documents else None
    state = torch.randn(2, 3, heads, 8, 6, dtype=torch.float64)
    for tensor in (*tokens, step, state):
        tensor.requires_grad_()
    query, key, value, decay = tokens
    found = scan_delta_rule(
        query, key, value, decay, step, resets=resets, chunk=CHUNK, state=state
    )
    assert_equal(found, scan_tokens(tokens, step, resets, state), [*tokens, step, state])
    if channels == 1:
        found = scan_linear(query, key, value, decay, resets=resets, chunk=CHUNK, state=state)
        assert_equal(found, scan_tokens(tokens, None, resets, state), [*tokens, state])


def assert_equal(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], inputs: list[Tensor]
) -> None:
    """Compare outputs, last states and all gradients of a random combination of both."""
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    weights = [torch.randn_like(tensor) for tensor in expected]
    gradients = [
        torch.autograd.grad(
            torch.stack([(a * b).sum() for a, b in zip(results, weights, strict=True)]).sum(),
            inputs,
        )
        for results in (found, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=50 * TOLERANCE)


def test_strong_decay_does_not_overflow() -> None:
    query, key, value, decay = draw_tokens(40, heads=1, channels=8)
    step = torch.ones_like(value[..., :1])
    outputs, _ = scan_delta_rule(query, key, value, 400 * decay, step, resets=None, chunk=CHUNK)
    assert outputs.isfinite().all()
