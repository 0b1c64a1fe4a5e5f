"""What a miniature reads of a user's own text, and what is mixed in where it is too little."""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.config.recipe import Recipe
from components.config.stand_ins import note_of_carriers
from components.errors import RecipeError
from tests.components.config.own_recipe import TOKENS, compose_own

HALF_BYTES = TOKENS // 4 * 4 // 2  # read four times they fill half of it


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(source: dict[str, Any], *words: str) -> Recipe:
    return compose_own({"data.sources.mine": source}, *words)


A_TXT: dict[str, Any] = {"files": ["a.txt"]}


def test_a_recipe_of_its_own_text_reads_nothing_else() -> None:
    Path("a.txt").write_text("x" * 2 * HALF_BYTES)
    recipe = own({**A_TXT, "most_epochs": 9})
    assert dict(recipe.data.shares) == {"mine": 1.0}
    assert recipe.data.sources["mine"].most_epochs == 9
    assert recipe.data.held_out_fraction == 0.005  # the recipe's
    assert recipe.scale.shrink.carriers == {}  # type: ignore[union-attr]  # not "none" here
    assert note_of_carriers(recipe) is None


def test_shares_of_ones_own_stay_to_the_last_digit() -> None:
    Path("a.txt").write_text("x" * 2 * HALF_BYTES)
    shares = {"a": 0.1, "b": 0.2, "c": 0.7}
    recipe = compose_own({
        "data.shares": shares,
        "data.sources": {name: deepcopy(A_TXT) for name in shares},
    })
    assert dict(recipe.data.shares) == shares


@pytest.mark.parametrize(
    ("name", "size"), [("a.txt", HALF_BYTES), ("b.jsonl.gz", HALF_BYTES // 3 + 1)]
)
def test_text_that_is_too_little_is_read_four_times_and_carriers_fill_up(
    name: str, size: int
) -> None:
    Path(name).write_text("x" * size)
    recipe = own({"files": [f"*{Path(name).suffix}"]})
    shares = recipe.data.shares
    assert shares["mine"] == pytest.approx(0.5, abs=1e-3)
    assert shares["python_source"] / shares["python_docs"] == pytest.approx(
        0.60 / 0.25, rel=1e-4
    )
    assert sum(shares.values()) == pytest.approx(1)
    kept = recipe.model_dump(mode="json")["scale"]["shrink"]["carriers"]
    assert kept["python_source"]["share"] == pytest.approx(shares["python_source"])
    note = note_of_carriers(recipe)
    assert note is not None
    assert "the text of mine more than 4 times, so 35.3% python_source, 14.7%" in note


def test_the_smallest_text_keeps_the_share_that_stand_ins_have() -> None:
    Path("a.txt").write_text("x")
    assert own(A_TXT).data.shares["mine"] == pytest.approx(0.15)


def test_the_way_out_of_carriers_is_one() -> None:
    Path("a.txt").write_text("x")
    recipe = own(A_TXT, "data.shares={mine: 1.0}")
    assert dict(recipe.data.shares) == {"mine": 1.0}
    assert note_of_carriers(recipe) is None
    assert dict(own(A_TXT, "scale=full").data.shares) == {"mine": 1.0}


@pytest.mark.parametrize(
    "source",
    [
        {"files": ["not_there.txt"]},
        {"files": ["not/there/*.txt"]},
        {"dataset": {"path": "x/y", "split": "train"}},
        {"tokens": ["not_there"]},
    ],
)
def test_text_that_cannot_be_looked_at_is_enough(source: dict[str, Any]) -> None:
    assert dict(own(source).data.shares) == {"mine": 1.0}


def test_what_is_only_compared_is_not_looked_at_outside_of_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.txt").write_text("x")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    Path("a.txt").write_text("x")
    for place, sources in {"a.txt": 3, "../a.txt": 1}.items():
        Path("own.yaml").unlink(missing_ok=True)
        with suppress(RecipeError):  # of a received recipe, such a place is refused
            own({"files": [place]})
        compared = compose_recipe(read_point(["recipe=./own.yaml"]), anywhere=True)
        assert len(compared.data.sources) == sources


def test_token_files_get_carriers_where_a_tokenizer_can_make_them_tokens() -> None:
    Path("a.bin").write_bytes(bytes(2 * TOKENS // 8))  # read four times: half
    with_folder = own({"tokens": ["a"]}, "data.tokenizer_folder=t")
    assert with_folder.data.shares["mine"] == pytest.approx(0.5, abs=1e-3)
    assert dict(own({"tokens": ["a"]}).data.shares) == {"mine": 1.0}


def test_beside_a_published_corpus_carriers_stay() -> None:
    Path("a.txt").write_text("x")
    recipe = compose_recipe(read_point(["recipe=teuken7b", "data.sources.de.files=[a.txt]"]))
    assert recipe.data.shares["python_source"] == 0.6
    assert recipe.data.held_out_fraction == 0.05
    assert note_of_carriers(recipe) is None


@pytest.mark.parametrize("action", ["show", "plan"])
def test_what_is_mixed_in_is_said_in_one_line(
    action: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("a.txt").write_text("x")
    own(A_TXT)
    words: dict[str, Any] = {
        "show": [],
        "plan": ["cluster=hopper", "scale=mini", "budget.ramp_up=none"],
    }
    assert main(["recipe=./own.yaml", f"action={action}", *words[action]]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("data: ")]
    assert len(said) == 1
    assert "are mixed in; data.shares={...} or scale=full leaves them out" in said[0]
