"""The reference is the layout undone; processes that fail or hang end with a reason."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.parity import prover
from components.parity.prover import RanksError, in_precision, start_ranks, to_single_process

Start = Callable[[str, int], None]


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=parity", *words]))


def test_one_process_has_the_same_mathematics_and_microbatches() -> None:
    recipe = composed("cluster.ranks=8")
    alone = to_single_process(recipe)
    assert alone.cluster.ranks == 1
    assert compute_fingerprint(alone) == compute_fingerprint(recipe)
    assert alone.parallelism.microbatch_sequences == recipe.parallelism.microbatch_sequences
    assert alone.parallelism.zero == 0


@pytest.mark.parametrize(
    "words",
    [
        ("parallelism.pipeline=2", "parallelism.tensor=2"),
        ("parallelism.data=4", "parallelism.zero=1", "parallelism.data_shard=2"),
        (
            "parallelism.pipeline=2",
            "parallelism.schedule=zero_bubble",
            "parallelism.stages_per_rank=2",
        ),
    ],
)
def test_layouts_that_share_their_microbatches_share_one_reference(
    words: tuple[str, ...],
) -> None:
    size = "parallelism.microbatch_sequences=4"
    assert to_single_process(composed(size, *words)) == to_single_process(composed(size))


def test_a_precision_is_taken_for_all_three_sums() -> None:
    precision = in_precision(composed(), "float64").precision
    assert {precision.compute, precision.accumulate, precision.reduce} == {"float64"}


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def call(code: str, ranks: int) -> None:
        program = tmp_path / "program.py"
        program.write_text(code)
        start_ranks((str(program),), ranks, tmp_path / "ranks.log")

    return call


def test_a_program_that_ends_well_is_waited_for(start: Start, tmp_path: Path) -> None:
    start(f"import pathlib, time; time.sleep(1); pathlib.Path('{tmp_path}', 'end').touch()", 1)
    assert (tmp_path / "end").exists()


def test_a_failing_program_says_why(start: Start) -> None:
    with pytest.raises(RanksError, match=r"exit status 1: ValueError: no such luck") as caught:
        start("raise ValueError('no such luck')", 1)
    assert "Traceback" in caught.value.log


def test_the_rank_that_failed_is_told_from_those_that_lost_it(start: Start) -> None:
    lost = "print('RuntimeError: gloo: Connection closed by peer', file=sys.stderr)"
    with pytest.raises(RanksError, match=r"exit status 1: KeyError: 'mine'"):
        start(f"import sys; {lost}; raise KeyError('mine')", 1)


def test_a_silent_failure_says_its_status(start: Start) -> None:
    with pytest.raises(RanksError, match=r"exit status 3: the log is empty"):
        start("raise SystemExit(3)", 1)


def test_a_program_that_hangs_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "MOST_SECONDS", 1)
    began = time.perf_counter()
    with pytest.raises(RanksError, match=r"not finished within 1 seconds"):
        start("import time; time.sleep(120)", 1)
    assert time.perf_counter() - began < 30
