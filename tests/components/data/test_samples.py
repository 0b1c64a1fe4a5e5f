import pickle
import subprocess
import sys

import pytest
import torch

from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleId, SampleOrder
from components.data.samples import (
    HeldOutWindows,
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


def test_a_copy_for_a_worker_carries_no_tokens(samples):
    expected = samples[0]
    copied = pickle.dumps(samples)
    assert len(copied) < 4000
    assert torch.equal(pickle.loads(copied)[0], expected)


def test_a_data_loader_yields_the_positions_of_its_sampler(samples):
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


def test_an_uneven_step_is_a_bug():
    with pytest.raises(AssertionError, match="divide evenly"):
        step_positions(first_sample=0, samples_per_step=10, rank=0, ranks=4)


def test_digests_of_ranks_add_up_in_any_order(samples):
    ids = [samples.sample_id(position) for position in range(60)]
    parts = [samples_digest(ids[rank::4]) for rank in (2, 0, 3, 1)]
    assert sum(parts) % 2**63 == samples_digest(ids) < 2**63
    assert samples_digest([]) == 0


def test_the_digest_tells_samples_apart():
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


def test_a_held_out_window_has_something_to_predict(prepared):
    windows = held_out(prepared, sequence_length=5)["a"]
    assert windows == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 999]]


def test_few_held_out_windows_are_spread_over_the_text(prepared):
    whole, few = (
        held_out(prepared, sequence_length=2),
        held_out(prepared, sequence_length=2, max_windows=2),
    )
    assert len(whole["a"]) == 5
    assert few["a"] == [whole["a"][0], whole["a"][2]]
    assert len(few["b"]) == 2


def test_what_runs_on_a_login_node_does_not_import_torch():
    script = """
import sys
import components.data.order, components.data.manifest, components.data.unigram
import data_prep.prepare, data_prep.card
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
