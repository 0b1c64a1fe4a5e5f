"""Context ranks, each with two chunks of every sequence, compute what one process does."""

import pytest
import torch

from components.config.model_spec.positions import AlibiSpec, LearnedSpec, RotarySpec
from components.distributed.context import SequencePart
from tests.components.distributed.context_cases import (
    CORE_LENGTH,
    Core,
    compare,
    core_differences,
    dropped_fractions,
    gathered_tokens,
    mean_of_ranks,
    seeds,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import (
    GELU,
    GEMMA3,
    HYBRID,
    LATENT,
    LAYER_NORM,
    LENGTH,
    RMS_NORM,
    Difference,
    Parts,
)

# Double precision has 16 digits; sums in another order cost the last two or three.
LOSS_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-10
CPU = torch.device("cpu")
CORES = {
    "multi-head": Core(),
    "grouped": Core(num_kv_heads=2),
    "one group": Core(num_kv_heads=1),
    "slopes": Core(slopes=True),
    "documents": Core(documents=True),
    "grouped, slopes, documents": Core(num_kv_heads=2, slopes=True, documents=True),
    # Longer than a rank's own part, shorter than the sequence.
    "window": Core(window=CORE_LENGTH - 3),
    "sinks": Core(num_kv_heads=2, sinks=True),
    "window, sinks": Core(window=3, sinks=True),
    "narrow window, slopes, documents": Core(window=3, slopes=True, documents=True),
}
LLAMA = Parts(z_loss=0.1)
BLOOM = Parts(
    num_heads=12,  # no power of two
    num_kv_heads=12,
    bias=True,
    tied=True,
    positions=AlibiSpec(),
    mlp=GELU,
    norm=LAYER_NORM,
    embedding_norm=LAYER_NORM,
)
# A window, none, and one longer than a rank's part; those with one turn otherwise.
WINDOWED = Parts(
    positions=RotarySpec(base=10_000.0, local_base=100.0),
    windows=(5, "full", LENGTH - 2),
    num_layers=3,
)
LATENT_HEADS = Parts(attention=LATENT)
GATED = Parts(
    positions=RotarySpec(base=10_000.0, rotary_fraction=0.6, local_base=100.0),
    windows=(5, "full"),
    output_gate=True,
)
LEARNED = Parts(num_kv_heads=8, tied=True, positions=LearnedSpec(num_positions=LENGTH))
MODELS = {
    "llama": LLAMA,
    "bloom": BLOOM,
    "learned": LEARNED,
    "windowed": WINDOWED,
    "latent": LATENT_HEADS,
    "gemma 3": GEMMA3,
    "hybrid": HYBRID,
    "gated": GATED,
    "sinks": Parts(num_kv_heads=2, windows=(5, "full"), sinks=True),
}


def parts(ranks: int) -> list[SequencePart]:
    return [SequencePart(rank=rank, ranks=ranks) for rank in range(ranks)]


def test_four_ranks_hold_an_early_chunk_and_its_mirror_image() -> None:
    assert [part.chunk_numbers for part in parts(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    places = SequencePart(rank=1, ranks=4).position_ids(4, CPU)
    assert places.tolist() == [2, 3, 12, 13]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_ranks_hold_every_place_once_and_see_equally_many_keys(ranks: int) -> None:
    length = 6 * ranks
    held = [part.position_ids(6, CPU) for part in parts(ranks)]
    assert torch.cat(held).sort().values.tolist() == list(range(length))
    visible = {int((places + 1).sum()) for places in held}
    assert visible == {length * (length + 1) // 2 // ranks}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_rank_takes_the_tokens_of_its_places(ranks: int) -> None:
    rows = torch.arange(3 * 4 * ranks).view(3, -1)
    for part in parts(ranks):
        assert torch.equal(part.select_rows(rows), rows[:, part.position_ids(4, CPU)])


def test_one_rank_alone_takes_all_of_a_sequence_of_any_length() -> None:
    rows = torch.arange(14).view(2, 7)
    assert SequencePart(rank=0, ranks=1).select_rows(rows) is rows


def test_gathered_parts_are_in_natural_order(two_ranks: Ranks, four_ranks: Ranks) -> None:
    for ranks in (two_ranks, four_ranks):
        assert all(found == list(range(CORE_LENGTH)) for found in ranks(gathered_tokens))


def test_figures_are_averaged_over_the_parts(four_ranks: Ranks) -> None:
    assert four_ranks(mean_of_ranks) == [1.5] * 4


@pytest.mark.parametrize("flex", [False, True], ids=["dense", "flex"])
@pytest.mark.parametrize("core", CORES)
def test_a_rank_attends_to_the_keys_of_all_and_learns_from_all(
    two_ranks: Ranks, four_ranks: Ranks, core: str, flex: bool
) -> None:
    """What comes out, and the gradients of queries, keys and values, are the plain core's."""
    for ranks in (two_ranks, four_ranks):
        for differences in ranks(core_differences, CORES[core]._replace(flex=flex)):
            assert max(differences) < LOSS_TOLERANCE


def test_half_of_the_weights_are_dropped_in_training_and_none_in_evaluation(
    two_ranks: Ranks,
) -> None:
    for training, evaluation in two_ranks(dropped_fractions):
        assert 0.4 < training < 0.6
        assert evaluation == 0


def test_each_rank_draws_masks_of_its_own(four_ranks: Ranks) -> None:
    found, alone = zip(*four_ranks(seeds), strict=True)
    assert len({3, *found}) == 5
    assert alone == (3, 3, 3, 3)


def assert_small(differences: list[Difference]) -> None:
    for difference in differences:
        assert difference.loss < LOSS_TOLERANCE
        assert difference.gradient < GRADIENT_TOLERANCE, difference.parameter


@pytest.mark.parametrize("documents", [False, True], ids=["crossing", "documents"])
@pytest.mark.parametrize(
    "model",
    MODELS.values(),
    ids=MODELS,
)
def test_a_decoder_on_two_ranks_equals_one_process(
    two_ranks: Ranks, model: Parts, documents: bool
) -> None:
    assert_small(two_ranks(compare, model, 1, False, documents))


@pytest.mark.quick("sliced-llama", "whole-bloom", "sliced-windowed")
@pytest.mark.parametrize(
    "model",
    MODELS.values(),
    ids=MODELS,
)
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sliced"])
def test_tensor_ranks_split_what_a_context_rank_holds(
    four_ranks: Ranks, model: Parts, sequence_parallel: bool
) -> None:
    assert_small(four_ranks(compare, model, 2, sequence_parallel, True))


def test_four_ranks_equal_one_process_with_norms_of_queries_and_keys(four_ranks: Ranks) -> None:
    assert_small(four_ranks(compare, LLAMA._replace(qk_norm=RMS_NORM), 1, False, False))


def test_four_ranks_pass_states_of_linear_mixers(four_ranks: Ranks) -> None:
    assert_small(four_ranks(compare, HYBRID, 1, False, True))
