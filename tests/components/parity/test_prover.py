"""The reference process, the drawn data, and errors of failing ranks."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.parity import prover
from components.train.batches import RankBatches
from tests.recipes.compositions import compose

Start = Callable[[str, int], None]
STAGES = "parallelism.stages_per_rank=2"


def composed(*words: str) -> Recipe:
    return compose("teuken7b", "scale=parity", *words)


def test_one_process_has_the_same_mathematics_and_microbatches() -> None:
    recipe = composed("cluster.ranks=8")
    alone = prover.to_single_process(recipe)
    assert alone.cluster.ranks == 1
    assert compute_fingerprint(alone) == compute_fingerprint(recipe)
    assert alone.parallelism.microbatch_sequences == recipe.parallelism.microbatch_sequences
    assert alone.parallelism.zero == 0


@pytest.mark.parametrize(
    "words",
    [
        ("parallelism.pipeline=2", "parallelism.tensor=2"),
        ("parallelism.data=4", "parallelism.zero=1", "parallelism.data_shard=2"),
        ("parallelism.pipeline=2", "parallelism.schedule=zero_bubble", STAGES),
    ],
)
def test_layouts_that_share_their_microbatches_share_one_reference(words) -> None:
    size = "parallelism.microbatch_sequences=4"
    alone = prover.to_single_process(composed(size))
    assert prover.to_single_process(composed(size, *words)) == alone


def test_a_precision_holds_for_computation_and_sums() -> None:
    precision = prover.in_precision(composed(), "float64").precision
    assert {precision.compute, precision.accumulate, precision.reduce} == {"float64"}


def read(recipe: Recipe, folder: Path, rank: int, step: int) -> Tensor:
    batches = RankBatches(
        recipe=recipe, folder=folder, manifest=Manifest.from_folder(folder), rank=rank
    )
    return batches.read_samples(batches.list_sample_numbers(step), pinned=False)


def drawn(recipe: Recipe, folder: Path) -> Path:
    prover.draw_data(recipe, folder)
    return folder


def test_drawn_data_pass_the_check_of_prepared_data(tmp_path: Path) -> None:
    recipe = composed()
    folder = drawn(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(folder)
    manifest.verify_files(folder, contents=True)
    assert set(manifest.sources) == set(recipe.data.shares)
    # Documents end, and small ids are common.
    tokens = read(recipe, folder, 0, 0).flatten()
    vocab_size = recipe.decoder_spec.vocab_size
    assert tokens.min() >= 0
    assert tokens.max() < vocab_size
    assert (tokens == 0).sum() > 10
    assert (tokens < vocab_size // 8).double().mean() > 0.4


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_process_reads_microbatches_rank_by_rank(tmp_path: Path, ranks: int) -> None:
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


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def call(code: str, ranks: int) -> None:
        program = tmp_path / "program.py"
        program.write_text(code)
        prover.start_ranks((str(program),), ranks, tmp_path / "ranks.log")

    return call


def test_a_successful_program_is_awaited(start: Start, tmp_path: Path) -> None:
    start(f"import pathlib, time; time.sleep(1); pathlib.Path('{tmp_path}', 'end').touch()", 1)
    assert (tmp_path / "end").exists()


LOST = "print('RuntimeError: gloo: Connection closed by peer', file=sys.stderr)"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no such luck')", "exit status 1: ValueError: no such luck"),
        # The cause is shown, not the lost connection.
        (f"import sys; {LOST}; raise KeyError('mine')", "exit status 1: KeyError: 'mine'"),
        ("raise SystemExit(3)", "exit status 3: the log is empty"),
    ],
)
def test_a_failing_program_says_why(start: Start, code: str, message: str) -> None:
    with pytest.raises(prover.RanksError, match=message) as caught:
        start(code, 1)
    assert ("Traceback" in caught.value.log) == ("Error" in message)


def test_a_hanging_program_is_stopped(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "MOST_SECONDS", 1)
    began = time.perf_counter()
    with pytest.raises(prover.RanksError, match=r"not finished within 1 seconds"):
        start("import time; time.sleep(120)", 1)
    assert time.perf_counter() - began < 30
