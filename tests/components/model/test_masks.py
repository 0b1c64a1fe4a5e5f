"""Document masks and ALiBi slopes, dense and in blocks, against other computations."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from components.config.model_spec.positions import (
    AlibiSpec,
    LearnedSpec,
    OrderSpec,
    PositionsSpec,
)
from components.model.decoder import Decoder
from components.model.masks import CausalMask
from tests.components.model.comparison import randomized, relative_difference
from tests.components.model.flex_on_cpu import flex_on_cpu
from tests.components.model.specs import ROTARY, small_decoder

KINDS: dict[str, PositionsSpec] = {
    "rotary": ROTARY,
    "alibi": AlibiSpec(),
    "none": OrderSpec(),
}
# Rotation by shifted angles rounds differently.
TOLERANCE = 1e-4


def packed(lengths: list[list[int]]) -> Tensor:
    """Return document numbers for rows of documents with these lengths."""
    rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_packed_document_equals_the_document_alone(kind: str) -> None:
    """Positions continue across documents, which relative encodings do not see."""
    model = randomized(small_decoder(positions=KINDS[kind]))
    lengths = [[5, 1, 14], [19, 1], [20]]
    tokens = torch.randint(61, (3, 20))
    logits = model(tokens, documents=packed(lengths))
    for row, row_lengths in enumerate(lengths):
        first = 0
        for length in row_lengths:
            part = slice(first, first + length)
            alone = model(tokens[row : row + 1, part])[0]
            assert relative_difference(logits[row, part], alone) < TOLERANCE
            first += length


def test_learned_positions_are_not_reset_at_a_document() -> None:
    model = randomized(small_decoder(positions=LearnedSpec(num_positions=20)))
    tokens = torch.randint(61, (1, 20))
    documents = packed([[7, 13]])
    logits = model(tokens, documents=documents)
    # The first document has no effect, but the second keeps positions 7 to 19.
    other = torch.cat((torch.randint(61, (1, 7)), tokens[:, 7:]), dim=1)
    torch.testing.assert_close(model(other, documents=documents)[:, 7:], logits[:, 7:])
    assert relative_difference(model(tokens[:, 7:])[0], logits[0, 7:]) > 0.01


def masks_made(
    model: Decoder, tokens: Tensor, mask: CausalMask
) -> tuple[list[Tensor], list[CausalMask]]:
    """Run all layers twice; return the results, and the masks with computed blocks."""
    made, find = list[CausalMask](), CausalMask._find_blocks

    def counted(self: CausalMask, keys: int) -> BlockMask:
        made.append(self)
        return find(self, keys)

    with flex_on_cpu(), torch.no_grad(), patch.object(CausalMask, "_find_blocks", counted):
        return [model(tokens, mask=mask) for _ in range(2)], made


@pytest.mark.parametrize(
    ("documents", "windows"),
    [
        (packed([[5, 15], [9, 11]]), ["full"]),
        (packed([[5, 15], [9, 11]]), [5, 5, "full", 7]),
        (None, ["full"]),
    ],
    ids=["documents", "windows", "whole"],
)
def test_layers_with_the_same_window_share_one_mask(documents, windows):
    model = randomized(small_decoder(positions=AlibiSpec(), num_layers=5, windows=windows))
    tokens = torch.randint(61, (2, 20))
    mask = model.build_mask(tokens, documents)
    twice, made = masks_made(model, tokens, mask)
    expected = [mask, *(mask.for_window(size) for size in (5, 7) if size in windows)]
    assert sorted(map(id, made)) == sorted(map(id, expected))
    assert torch.equal(*twice)
    dense = model(tokens, documents=documents)
    assert relative_difference(twice[0], dense) < TOLERANCE
