"""What values a sweep stands for, and which words are no list of values."""

import re
from pathlib import Path

import pytest

from command.arguments import ROOT
from command.main import main
from command.study.sweep_points import split_sweep
from components.errors import RecipeError

Said = pytest.CaptureFixture[str]

RECIPE = ("-m", "recipe=teuken7b")


def points_of(*words: str) -> list[str]:
    return [point[-1].partition("=")[2] for point in split_sweep(words)[1]]


CELLS = re.findall(
    r"^\| `(\S[^`]*=[^`]*)` \| (`.*|refused: .*) \|$",
    (ROOT / "docs" / "hydra.md").read_text("utf-8").partition("## Values of a sweep")[2],
    re.M,
)


def test_the_page_lists_the_functions_of_hydras_grammar() -> None:
    functions = ["choice", "range", "float", "sort", "tag", "glob", "interval", "shuffle"]
    written = " ".join(word for word, _ in CELLS)
    assert [name for name in functions if f"{name}(" not in written] == []


@pytest.mark.parametrize(("word", "stands_for"), CELLS)
def test_what_the_page_says_of_a_value_holds_under_m_and_without(
    word: str, stands_for: str, capfd: Said
) -> None:
    beside = () if word.startswith("recipe=") else RECIPE[1:]
    refused = stands_for.removeprefix("refused: ")
    if refused == stands_for:
        assert points_of("-m", *beside, word) == re.findall("`([^`]*)`", stands_for)
        assert main([*beside, word, "action=show"]) == 2
        assert "add -m to sweep over values" in capfd.readouterr().err
        return
    said = []
    for words in (["-m", *beside, word], [*beside, word]):
        assert main([*words, "action=show"]) == 2
        said.append(capfd.readouterr().err)
    assert refused in said[0]
    assert said[0] == said[1] or "add -m" in said[1]


def test_a_glob_chooses_recipes_and_files_of_a_group() -> None:
    bloom = ["bloom176b", "bloom1b1", "bloom1b7", "bloom3b", "bloom560m", "bloom7b1"]
    assert points_of("-m", "recipe=glob(bloom*)") == bloom
    assert points_of("-m", "recipe=glob([bloom*,gpt3*],exclude=*b1)") == [
        *("bloom176b", "bloom1b7", "bloom3b", "bloom560m", "gpt3b6")
    ]
    assert points_of(*RECIPE, "tracking=glob(*)") == ["both", "mlflow", "none", "wandb"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "optimizer.lr=interval(1e-4,1e-3)",
            "optimizer.lr: interval(1e-4,1e-3) is not a list of values\n  write values or ",
        ),
        ("optimizer.lr=glob(1*)", "requires a group, but optimizer.lr is not a group"),
        ("recipe=glob(walnut*)", "recipe: glob(walnut*) has no values"),
        ("model.dim=range(3,1)", "model.dim: range(3,1) has no values"),
        ("model.dim=range(1,9,0)", "model.dim: range(1,9,0) cannot be listed: range() arg 3"),
        ("model.dim=choice(choice(1,2),3)", "cannot be listed: "),
        ("model.dim=shuffle(1,2)", "needs the same order of points\n  remove shuffle"),
        ("model.dim=shuffle(range(0,1e18))", "needs the same order of points"),
        ("model.dim=range(0,1e18)", "model.dim: a sweep can have at most 10,000 points"),
        ("model.dim=walnut(1)", "Unknown function 'walnut'"),
        ("model.dim=choice(1,2,1)", "choice(1,2,1) lists 1 twice\n  keep one of them"),
    ],
)
def test_what_is_no_list_is_told(word: str, message: str, capfd: Said) -> None:
    words = RECIPE if not word.startswith("recipe=") else RECIPE[:1]
    assert main([*words, word, "action=show"]) == 2
    assert message in capfd.readouterr().err


def test_points_here_and_points_of_a_scheduler_are_two_commands(capfd: Said) -> None:
    assert main([*RECIPE, "cluster=local,juwels"]) == 2
    said = capfd.readouterr().err
    assert "cluster: some points need a scheduler, and others do not\n  use a" in said
    assert main([*RECIPE, "cluster=local,juwels", "action=show"]) == 0


def test_several_recipes_without_m_are_no_name_of_one(capfd: Said) -> None:
    assert main(["recipe=teuken7b,mula1b", "action=show"]) == 2
    assert capfd.readouterr().err == (
        "recipe: several values in 'recipe=teuken7b,mula1b'\n  add -m to sweep over values\n"
    )


def test_the_product_of_all_keys_is_bounded_before_it_is_made() -> None:
    with pytest.raises(
        RecipeError, match=r"budget\.seed: a sweep can have at most 10,000 points"
    ):
        split_sweep([
            *RECIPE,
            *(f"model.{n}=range(0,1000)" for n in "ab"),
            "budget.seed=range(1001)",
        ])


@pytest.mark.parametrize("text", ["teuken7b 'x", "teuken7b \\", ""])
def test_sides_that_are_no_words_are_told(text: str, capfd: Said) -> None:
    assert main(["action=diff", f"a={text}", "b=teuken7b"]) == 2
    assert capfd.readouterr().err.startswith("a: ")


def test_a_sweep_without_a_run_names_no_table_and_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "recipe=teuken7b", "optimizer.lr=-1,-2"]) == 2
    said = capfd.readouterr()
    assert said.out.count("should be greater than 0") == 2
    assert "repeat the command to continue" not in said.err
    assert list(tmp_path.iterdir()) == []
