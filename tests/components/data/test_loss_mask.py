"""Goldfish loss against the published code's rule, number by number, and its known faults."""

import math

import pytest
import torch
from torch import Tensor

from components.data.samples import LossMask

EOD = 3
PUBLISHED = LossMask(one_in=50, window_tokens=50, after_eod=True, eod_id=EOD)


def mask(one_in: int, window_tokens: int) -> LossMask:
    return LossMask(one_in=one_in, window_tokens=window_tokens, after_eod=True, eod_id=EOD)


def tokens(*shape: int, seed: int = 0, vocabulary: int = 131_072) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, shape, generator=generator)


def table() -> list[float]:
    generator = torch.Generator().manual_seed(2971215073)
    return torch.rand(1_000_003, generator=generator).tolist()


def wrapped(product: int) -> int:
    """Write an integer as 64 bits with a sign would hold it."""
    return (product + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize(("one_in", "window_tokens"), [(50, 50), (4, 13), (2, 1)])
def test_each_target_is_dropped_by_the_wrapped_product_of_its_window(
    one_in: int, window_tokens: int
) -> None:
    numbers, rows = table(), tokens(2, 161)
    found = mask(one_in, window_tokens)(rows)
    for row, counted in zip(rows.tolist(), found.tolist(), strict=True):
        labels = row[1:]
        for place, counts in enumerate(counted):
            window = labels[max(0, place + 1 - window_tokens) : place + 1]
            drawn = numbers[wrapped(math.prod(window)) % 1_000_003]
            assert counts == (len(window) < window_tokens or drawn >= 1 / one_in)


def test_the_dropped_share_is_one_in_k() -> None:
    counted = mask(4, 13)(tokens(64, 2_049))[:, 12:]
    share, spread = (~counted).double().mean().item(), math.sqrt(0.25 * 0.75 / counted.numel())
    assert share == pytest.approx(0.25, abs=4 * spread)


def test_windows_whose_product_is_zero_share_the_tables_first_number() -> None:
    rows = 2 * tokens(4, 2_049, vocabulary=60_000)  # of fifty even ids 64 bits are left with 0
    assert table()[0] == pytest.approx(0.2337, abs=1e-4)
    assert PUBLISHED(rows).double().mean() > 0.999
    assert not mask(4, 65)(rows)[:, 64:].any()


def test_the_same_passage_drops_the_same_tokens_wherever_it_stands() -> None:
    passage, before = tokens(200), tokens(700, seed=1)
    found = []
    for first in (0, 37, 500):
        row = torch.cat([before[:first], passage, before[first:]])
        found.append(mask(4, 13)(row)[first + 12 : first + 199])
    assert (~found[0]).sum() > 20
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_rows_of_any_batch_have_masks_of_their_own() -> None:
    rows = tokens(2, 3, 129)
    whole = PUBLISHED(rows)
    assert torch.equal(whole[1, 2], PUBLISHED(rows[1, 2]))


def test_what_follows_an_end_of_document_does_not_count() -> None:
    """As Megatron's ``--eod-mask-loss``: by the token that is read, not by the target."""
    rows = torch.tensor([[5, EOD, 7, 8, EOD, EOD]])
    only = LossMask(one_in=0, window_tokens=0, after_eod=False, eod_id=EOD)
    assert only(rows).tolist() == [[True, False, True, True, False]]
    assert not only.counts_all
    both = LossMask(one_in=4, window_tokens=13, after_eod=False, eod_id=EOD)
    long = tokens(1, 300)
    long[0, ::7] = EOD
    assert torch.equal(both(long), only(long) & mask(4, 13)(long))


def test_shorter_rows_than_the_window_count_whole() -> None:
    assert PUBLISHED(tokens(2, 50)).all()
    assert mask(0, 0).counts_all
    assert mask(0, 0)(tokens(2, 50)).all()


def test_padding_of_packed_rows_does_not_count() -> None:
    rows = torch.tensor([[5, EOD, 7, EOD, EOD, EOD]])
    packed = LossMask(one_in=0, window_tokens=0, after_eod=True, eod_id=EOD, padded=True)
    assert packed(rows).tolist() == [[True, True, True, False, False]]
    assert not packed.counts_all
