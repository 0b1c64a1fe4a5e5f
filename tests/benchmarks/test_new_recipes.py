"""The benchmark of new recipes has reproducible texts and measures a rise."""

import json
from pathlib import Path

import pytest

from benchmarks.training.new_recipes import (
    SEEDS,
    SIZES,
    TEXTS,
    choose_runs,
    compute_rise,
    write_text,
)
from components.data.files import hash_file
from components.errors import RecipeError


@pytest.mark.parametrize(
    ("losses", "rise"),
    [([3.0], 0.0), ([3.0, 2.0, 1.0], 0.0), ([3.0, 1.0, 2.5, 1.5], 1.5), ([1.0, 1.5, 0.5], 0.5)],
)
def test_a_rise_is_relative_to_the_running_minimum(losses: list[float], rise: float) -> None:
    assert compute_rise(losses) == rise


def test_each_run_is_chosen_once_and_one_seed_of_all_texts_comes_first() -> None:
    runs = choose_runs([])
    assert len(runs) == len(set(runs)) == len(TEXTS) * len(SIZES) * len(SEEDS) == 108
    assert runs[: len(TEXTS)] == [(text, "1M", 1) for text in TEXTS]
    assert choose_runs(["log", "0.5M", "seed=2"]) == [("log", "0.5M", 2)]
    with pytest.raises(RecipeError, match="2M: not a text, a size or a seed"):
        choose_runs(["log", "2M"])


@pytest.mark.parametrize("name", ["log", "numbers", "languages", "characters"])
def test_a_text_is_reproducible_and_within_its_size(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    num_bytes = [write_text(name, file, 100_000) for file in files]
    assert hash_file(files[0]) == hash_file(files[1])
    lines = [json.loads(line)["text"] for line in files[0].read_text("utf-8").splitlines()]
    assert sum(len(line.encode()) for line in lines) == num_bytes[0] <= 100_000
    assert num_bytes[0] > 50_000
