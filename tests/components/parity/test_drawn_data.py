"""Drawn tokens are a prepared folder like any other, the same for every layout."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.parity.prover import draw_data
from components.train.batches import RankBatches


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=parity", *words]))


def read(recipe: Recipe, folder: Path, rank: int, step: int) -> Tensor:
    batches = RankBatches(
        recipe=recipe, folder=folder, manifest=Manifest.from_folder(folder), rank=rank
    )
    return batches.read_samples(batches.list_sample_numbers(step), pinned=False)


def drawn(recipe: Recipe, folder: Path) -> Path:
    draw_data(recipe, folder)
    return folder


def test_what_is_drawn_passes_the_check_of_prepared_data(tmp_path: Path) -> None:
    recipe = composed()
    folder = drawn(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(folder)
    manifest.verify_files(folder, contents=True)
    assert set(manifest.sources) == set(recipe.data.shares)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_process_reads_the_ranks_microbatches_rank_by_rank(
    tmp_path: Path, ranks: int
) -> None:
    together = composed(f"parallelism.data={ranks}")
    size = together.parallelism.microbatch_sequences
    alone = composed(f"parallelism.microbatch_sequences={size}")
    first, second = (
        drawn(recipe, tmp_path / name) for name, recipe in (("a", alone), ("b", together))
    )
    for step in (0, 9):
        shares = [read(together, second, rank, step) for rank in range(ranks)]
        assert torch.equal(read(alone, first, 0, step), torch.cat(shares))


def test_another_seed_draws_other_tokens(tmp_path: Path) -> None:
    one = drawn(composed(), tmp_path / "one")
    other = drawn(composed("budget.seed=43"), tmp_path / "other")
    again = drawn(composed(), tmp_path / "again")
    file = "de.train.bin"
    assert (one / file).read_bytes() == (again / file).read_bytes()
    assert (one / file).read_bytes() != (other / file).read_bytes()


def test_documents_end_and_small_ids_are_common(tmp_path: Path) -> None:
    recipe = composed()
    tokens = read(recipe, drawn(recipe, tmp_path / "data"), 0, 0).flatten()
    vocab_size = recipe.decoder_spec.vocab_size
    assert tokens.min() >= 0
    assert tokens.max() < vocab_size
    assert (tokens == 0).sum() > 10
    assert (tokens < vocab_size // 8).double().mean() > 0.4
