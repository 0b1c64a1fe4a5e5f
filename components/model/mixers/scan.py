"""Chunked scans of linear recurrences: the gated delta rule and Mamba-2's state space.

A head has a state S of (key_dim, value_dim). A token with key k, value v, decay a and step
size b changes it and reads the output with its query q:

- linear (https://arxiv.org/abs/2405.21060, section 6): ``S = a S + k v^T``
- delta (https://arxiv.org/abs/2412.06464, equation 10): ``S = a S + b k (v - (a S)^T k)^T``
- output of both: ``S^T q``; ``a`` is a number, or has one number per channel of the key
  (https://arxiv.org/abs/2510.26692, equation 1)

Tokens of a chunk are processed by matrix products, chunks one after another. Shapes are
(batch, groups, heads, seq, width): the heads of a group share queries and keys (1 head there).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from components.config.model_spec.mixers import KimiDeltaSpec

Scanned = tuple[Tensor, Tensor]  # outputs of all tokens, and the states after the last token
Scan = Callable[..., Scanned]
Products = list[Float[Tensor, "batch groups heads chunks chunk chunk"]]


class Decays:
    """Decays between the tokens of each chunk, zero across starts of documents."""

    def __init__(
        self,
        log_decay: Float[Tensor, "batch groups heads chunks chunk channels"],
        resets: Bool[Tensor, "batch 1 1 chunks chunk"] | None,
    ) -> None:
        self.total = total = log_decay.cumsum(-2)
        size, last = log_decay.shape[-2], total[..., -1:, :]
        visible = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
        self.reads, self.writes = total.exp(), (last - total).exp()
        if resets is not None:
            segment = resets.cumsum(-1)
            visible = visible & (segment[..., :, None] == segment[..., None, :])
            self.reads = self.reads * (segment == 0)[..., None]
            self.writes = self.writes * (segment == segment[..., -1:])[..., None]
        self.retained = self.reads[..., -1, :, None]  # of the state, over a whole chunk
        self.visible = visible

    def weigh_products(self, lefts: Sequence[Tensor], right: Tensor) -> Products:
        """Return the decayed products of each ``left`` with ``right`` of earlier tokens."""
        if self.total.shape[-1] == 1:
            # Differences of sums never overflow, unlike factors.
            between = self.total - self.total.mT
            between = between.masked_fill(~self.visible, -torch.inf).exp()
            return [left @ right.mT * between for left in lefts]
        products = weigh_channels(lefts, right, self.total)
        return [product.masked_fill(~self.visible, 0.0) for product in products]


def weigh_channels(
    lefts: Sequence[Float[Tensor, "*batch chunk channels"]],
    right: Float[Tensor, "*batch chunk channels"],
    total: Float[Tensor, "*batch chunk channels"],
) -> list[Float[Tensor, "*batch chunk chunk"]]:
    """Return products of ``lefts`` with earlier tokens' ``right``, decayed by channel.

    ``total`` are sums of logarithms of decays. Blocks of a few tokens have a decay for each
    pair of tokens. Two blocks join by a product whose factors decay to and from the
    last token of the first block, so that no factor exceeds 1.
    """
    size, length = KimiDeltaSpec.direct_tokens, right.shape[-2]
    sums = _split_tokens(total, size)
    after = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    exponents = sums[..., :, None, :] - sums[..., None, :, :]
    between = exponents.masked_fill(after[..., None], -torch.inf).exp()
    decayed = between * _split_tokens(right, size)[..., None, :, :]
    blocks = [(decayed @ _split_tokens(left, size)[..., None])[..., 0] for left in lefts]
    while size < length:
        first, second = _split_tokens(total, 2, size).unbind(-3)
        border = first[..., -1:, :]
        earlier = _split_tokens(right, 2, size)[..., 0, :, :] * (border - first).exp()
        decay = (second - border).exp()
        later = [_split_tokens(left, 2, size)[..., 1, :, :] * decay for left in lefts]
        joined = (torch.cat(later, -2) @ earlier.mT).chunk(len(lefts), -2)
        for place, corner in enumerate(joined):
            pairs = blocks[place].reshape(*corner.shape[:-2], 2, size, size)
            above, below = pairs.unbind(-3)
            rows = F.pad(above, (0, size)), torch.cat((corner, below), -1)
            blocks[place] = torch.cat(rows, -2)
        size *= 2
    return [block.squeeze(-3) for block in blocks]


def _split_tokens(
    tokens: Float[Tensor, "*batch chunk channels"], *sizes: int
) -> Float[Tensor, "..."]:
    """Split the tokens of a chunk into blocks."""
    return tokens.reshape(*tokens.shape[:-2], -1, *sizes, tokens.shape[-1])


def scan_delta_rule(
    query: Float[Tensor, "batch groups shared seq key_dim"],
    key: Float[Tensor, "batch groups shared seq key_dim"],
    value: Float[Tensor, "batch groups heads seq value_dim"],
    log_decay: Float[Tensor, "batch groups heads seq channels"],
    step: Float[Tensor, "batch groups heads seq 1"],
    *,
    resets: Bool[Tensor, "batch seq"] | None,
    chunk: int,
    state: Float[Tensor, "batch groups heads key_dim value_dim"] | None = None,
) -> Scanned:
    """Scan the gated delta rule from ``state``, or from zero; ``resets`` start documents.

    A chunk's corrections solve a triangular system (https://arxiv.org/abs/2406.06484, section
    3.2): each token's value without what earlier tokens and the state recall for its key.
    """
    length = query.shape[-2]
    query, key, value, log_decay, step = (
        _cut(tensor, chunk) for tensor in (query, key, value, log_decay, step)
    )
    decays = Decays(log_decay, _cut_resets(resets, chunk))
    scores, system = decays.weigh_products([query, key], key)
    system = system * step
    targets = torch.cat((value * step, key * decays.reads * step), -1)
    solved = torch.linalg.solve_triangular(system, targets, upper=False, unitriangular=True)
    values, recalls = solved.split([value.shape[-1], key.shape[-1]], -1)
    outputs, state = _scan_chunks(scores, query, key, values, recalls, decays, state)
    return outputs[..., :length, :], state


def scan_linear(
    query: Float[Tensor, "batch groups shared seq key_dim"],
    key: Float[Tensor, "batch groups shared seq key_dim"],
    value: Float[Tensor, "batch groups heads seq value_dim"],
    log_decay: Float[Tensor, "batch groups heads seq 1"],
    *,
    resets: Bool[Tensor, "batch seq"] | None,
    chunk: int,
    state: Float[Tensor, "batch groups heads key_dim value_dim"] | None = None,
) -> Scanned:
    """Scan the linear recurrence from ``state``, or from zero; ``resets`` start documents."""
    length = query.shape[-2]
    query, key, value, log_decay = (
        _cut(tensor, chunk) for tensor in (query, key, value, log_decay)
    )
    decays = Decays(log_decay, _cut_resets(resets, chunk))
    (scores,) = decays.weigh_products([query], key)
    outputs, state = _scan_chunks(scores, query, key, value, None, decays, state)
    return outputs[..., :length, :], state


def scan_mamba2(
    query: Tensor, key: Tensor, value: Tensor, step: Tensor, rate: Tensor, **given: Any
) -> Scanned:
    """Return outputs and last states of Mamba-2: ``step`` multiplies values and log decays.

    ``rate``, the log decay of a step size of 1, has a number per head, expanded to all tokens.
    """
    return scan_linear(query, key, value * step, rate * step, **given)


def _scan_chunks(
    scores: Tensor,
    query: Tensor,
    key: Tensor,
    values: Tensor,
    recalls: Tensor | None,
    decays: Decays,
    state: Tensor | None,
) -> Scanned:
    """Pass the state from chunk to chunk; ``recalls`` read what the state predicts."""
    reading, writing = query * decays.reads, (key * decays.writes).mT
    if state is None:
        shape = *values.shape[:3], key.shape[-1], values.shape[-1]
        state = values.new_zeros(shape)
    by_chunk = (scores, reading, writing, decays.retained, values)
    chunks = zip(*(tensor.unbind(3) for tensor in by_chunk), strict=True)
    recalling = None if recalls is None else recalls.unbind(3)
    outputs = []
    for index, (score, read, write, retained, written) in enumerate(chunks):
        if recalling is not None:
            written = written - recalling[index] @ state
        outputs.append(read @ state + score @ written)
        state = state * retained + write @ written
    return torch.cat(outputs, -2), state


def _cut(tensor: Tensor, chunk: int) -> Tensor:
    """Cut the sequence into chunks; added tokens change neither states nor outputs."""
    padded = F.pad(tensor, (0, 0, 0, -tensor.shape[-2] % chunk))
    return padded.reshape(*padded.shape[:-2], -1, chunk, padded.shape[-1])


def _cut_resets(resets: Tensor | None, chunk: int) -> Tensor | None:
    if resets is None:
        return None
    padded = F.pad(resets, (0, -resets.shape[-1] % chunk))
    return padded.reshape(len(padded), 1, 1, -1, chunk)
