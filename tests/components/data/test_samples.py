"""Samples of ranks, held-out windows, and the loss mask of the published Goldfish loss."""

import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleId, SampleOrder
from components.data.samples import (
    HeldOutWindows,
    LossMask,
    PackedSamples,
    samples_digest,
    step_positions,
)

LENGTH = 8


@pytest.fixture
def samples(prepared):
    folder, manifest = prepared
    phase = Phase(first_sample=0, shares={"a": 0.6, "b": 0.4}, path="data.shares")
    windows = windows_per_source(manifest, LENGTH)
    order = SampleOrder(phases=[phase], samples=windows, seed=1)
    return PackedSamples(folder=folder, manifest=manifest, order=order, sequence_length=LENGTH)


def test_windows_leave_room_for_the_token_after_the_last(prepared):
    _, manifest = prepared
    assert windows_per_source(manifest, LENGTH) == {"a": 12, "b": 6}
    assert windows_per_source(manifest, 101) == {"a": 1, "b": 0}
    assert windows_per_source(manifest, 102) == {"a": 0, "b": 0}


def test_a_sample_is_the_window_that_its_id_names(samples):
    for position in range(50):
        sample = samples.sample_id(position)
        first = {"a": 0, "b": 500}[sample.source] + sample.index * LENGTH
        tokens = samples[position]
        assert tokens.dtype == torch.int64
        assert tokens.tolist() == list(range(first, first + LENGTH + 1))


def test_an_epoch_predicts_every_token_once(samples):
    seen = []
    for position in range(100):
        sample = samples.sample_id(position)
        if sample.source == "a" and sample.epoch == 0:
            seen += samples[position][1:].tolist()
    assert sorted(seen) == list(range(1, 97))


def test_a_worker_s_copy_is_small_and_yields_its_positions(samples):
    expected = samples[0]
    copied = pickle.dumps(samples)
    assert len(copied) < 4000
    assert torch.equal(pickle.loads(copied)[0], expected)
    positions = step_positions(first_sample=4, samples_per_step=8, rank=1, ranks=2)
    loader = torch.utils.data.DataLoader(samples, sampler=positions, batch_size=4)
    (batch,) = list(loader)
    assert torch.equal(batch, torch.stack([samples[p] for p in (8, 9, 10, 11)]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_the_ranks_of_a_step_share_its_positions_without_gap_or_overlap(ranks):
    blocks = [
        step_positions(first_sample=24, samples_per_step=12, rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    assert [position for block in blocks for position in block] == list(range(24, 36))
    with pytest.raises(AssertionError, match="divide evenly"):
        step_positions(first_sample=0, samples_per_step=10, rank=0, ranks=4)


def test_digests_of_ranks_add_up_in_any_order(samples):
    ids = [samples.sample_id(position) for position in range(60)]
    parts = [samples_digest(ids[rank::4]) for rank in (2, 0, 3, 1)]
    assert sum(parts) % 2**63 == samples_digest(ids) < 2**63
    assert samples_digest([]) == 0
    ids = [SampleId("a", 0, 1), SampleId("a", 1, 0), SampleId("a1", 0, 1), SampleId("a", 0, 11)]
    assert len({samples_digest([sample]) for sample in ids}) == len(ids)
    assert samples_digest(ids[:1] * 2) != samples_digest(ids[:1])


def held_out(prepared, **changes):
    folder, manifest = prepared
    arguments = {"sequence_length": 4, "max_windows": 99, **changes}
    windows = HeldOutWindows(folder=folder, manifest=manifest, **arguments)
    return {
        name: [w.tolist() for w in windows.iter_windows(name)] for name in windows.source_names
    }


def test_held_out_windows_cover_the_text_and_the_last_is_shorter(prepared):
    assert held_out(prepared) == {
        "a": [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [8, 9, 999]],
        "b": [[500, 501, 502, 503, 999]],
    }
    windows = held_out(prepared, sequence_length=5)["a"]  # each has something to predict
    assert windows == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 999]]
    whole = held_out(prepared, sequence_length=2)["a"]
    few = held_out(prepared, sequence_length=2, max_windows=2)  # spread over the text
    assert (len(whole), len(few["b"])) == (5, 2)
    assert few["a"] == [whole[0], whole[2]]


def test_code_for_login_nodes_does_not_import_torch():
    script = """
import sys
import components.data.order, components.data.manifest, components.data.unigram
import data_prep.prepare, data_prep.card
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


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
    return (product + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize(("one_in", "window_tokens"), [(50, 50), (4, 13), (2, 1)])
def test_each_target_is_dropped_by_the_wrapped_product_of_its_window(one_in, window_tokens):
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


def test_windows_with_product_zero_use_the_first_number_of_the_table() -> None:
    rows = 2 * tokens(
        4, 2_049, vocabulary=60_000
    )  # the product of fifty even ids is 0 in 64 bits
    assert table()[0] == pytest.approx(0.2337, abs=1e-4)
    assert PUBLISHED(rows).double().mean() > 0.999
    assert not mask(4, 65)(rows)[:, 64:].any()


def test_a_passage_drops_the_same_tokens_at_every_position() -> None:
    passage, before = tokens(200), tokens(700, seed=1)
    found = []
    for first in (0, 37, 500):
        row = torch.cat([before[:first], passage, before[first:]])
        found.append(mask(4, 13)(row)[first + 12 : first + 199])
    assert (~found[0]).sum() > 20
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_token_after_an_end_of_document_does_not_count() -> None:
    """As in Megatron's ``--eod-mask-loss``: the input token decides, not the target."""
    rows = torch.tensor([[5, EOD, 7, 8, EOD, EOD]])
    only = LossMask(one_in=0, window_tokens=0, after_eod=False, eod_id=EOD)
    assert only(rows).tolist() == [[True, False, True, True, False]]
    assert not only.counts_all
    both = LossMask(one_in=4, window_tokens=13, after_eod=False, eod_id=EOD)
    long = tokens(1, 300)
    long[0, ::7] = EOD
    assert torch.equal(both(long), only(long) & mask(4, 13)(long))


def test_masks_of_short_batched_and_padded_rows():
    assert PUBLISHED(tokens(2, 50)).all()
    assert mask(0, 0).counts_all
    assert mask(0, 0)(tokens(2, 50)).all()
    rows = tokens(2, 3, 129)
    whole = PUBLISHED(rows)
    assert torch.equal(whole[1, 2], PUBLISHED(rows[1, 2]))
    rows = torch.tensor([[5, EOD, 7, EOD, EOD, EOD]])
    packed = LossMask(one_in=0, window_tokens=0, after_eod=True, eod_id=EOD, padded=True)
    assert packed(rows).tolist() == [[True, True, True, False, False]]
    assert not packed.counts_all
