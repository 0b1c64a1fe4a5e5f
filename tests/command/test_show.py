"""`show` in one screen: what follows from a recipe first, then what is not the default."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.composition.conf_groups import compose_defaults
from command.main import main
from command.recipe_summary import iter_differences, mixture_lines, written_value
from tests.recipes.golden_files import check_text

SCREEN = {"teuken7b": 42, "mula220b_a10b": 49}  # of 100 columns; experts have more keys
TEXT = Path(__file__).with_name("shown.txt")
Shown = Callable[..., str]


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    def show(*words: str, columns: int = 100) -> str:
        monkeypatch.setattr("command.recipe_summary.WIDTH", columns)
        assert main([*words, "action=show"]) == 0
        return "".join(f"{line.rstrip()}\n" for line in capfd.readouterr().out.splitlines())

    return show


@pytest.mark.parametrize("name", SCREEN)
def test_a_recipe_is_one_screen(name: str, shown: Shown) -> None:
    text = shown(f"recipe={name}", "scale=full")
    assert text.count("\n") <= SCREEN[name]
    assert max(map(len, text.splitlines())) <= 100


def test_golden_text_and_narrow_screen(shown: Shown) -> None:
    check_text(TEXT, shown("recipe=teuken7b", "scale=full"))
    wide, narrow = (shown("recipe=teuken7b", columns=columns) for columns in (1_000, 80))
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split() == wide.split()


def test_show_lists_keys_of_the_user_and_no_defaults(shown: Shown) -> None:
    assert "beta2=" not in shown("recipe=teuken7b")
    assert re.search(
        r"^optimizer +.*beta2=0.9\b", shown("recipe=teuken7b", "optimizer.beta2=0.9"), re.M
    )


def test_full_true_shows_all_keys(shown: Shown, capfd: pytest.CaptureFixture[str]) -> None:
    text = shown("recipe=teuken7b", "full=true")
    tree = yaml.safe_load(text)
    assert tree["optimizer"]["beta2"] == 0.95
    assert tree["derived"]["ranks"] == 1
    assert tree["assumed"]["warmup_tokens"]["reason"]
    assert main(["recipe=teuken7b", "action=show", "cite=true", "full=true"]) == 2
    assert "full: not used by action=show with cite=" in capfd.readouterr().err


def test_words_on_the_screen_work_on_the_command_line() -> None:
    """Each value of a model that is written there composes the same recipe."""
    recipe = compose_recipe(read_point(["recipe=mula1b"]))
    tree = recipe.model_dump(mode="json")
    found = iter_differences(tree["model"], compose_defaults()["model"], "model")
    words = [f"model.{word}" for word in found if "=" in word]
    assert len(words) > 10
    again = compose_recipe(read_point(["recipe=mula1b", *words]))
    assert again.model == recipe.model


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4_096, "4_096"),
        (None, "null"),
        (1e-5, "1e-05"),
        ({}, "{}"),
        ("", "''"),
        ("x" * 31, "x" * 30 + "..."),
        ([], "[]"),
        ([[0, 1]], "[1 items]"),
    ],
)
def test_values_are_shown_as_in_yaml(value: object, text: str) -> None:
    assert written_value(value) == text


GIVEN = "data.shares={en: 0.25, de: 0.75}"


def lines(*words: str) -> list[str]:
    point = ["recipe=teuken7b", "budget.total_tokens=614_400", *words]
    return list(mixture_lines(compose_recipe(read_point(point))))


def test_mixture_phases_and_limits_have_separate_lines() -> None:
    assert lines(GIVEN) == ["mixture, tokens 0 to 614,400: de 75.0000%, en 25.0000%"]
    phase = "data.phases={end: {from_fraction: 0.75, shares: {en: 1.0}}}"
    assert lines(
        GIVEN, phase, "data.sources.en.most_epochs=4", "data.on_exhausted=redistribute"
    ) == [
        "mixture, tokens 0 to 460,800: de 75.0000%, en 25.0000%",
        "mixture, tokens 460,800 to 614,400: en 100.0000%",
        "read at most: en 4 times; then redistribute",
    ]


def test_a_mixture_rule_shows_its_condition() -> None:
    (line,) = lines("data.shares={}", "data.mixture={temperature: 3}")
    assert line.endswith(
        "by tokens ** (1 / 3); action=prepare counts the tokens and prints the shares"
    )
    (line,) = lines("data.shares={}", "data.mixture=natural")
    assert "in proportion to the tokens; action=prepare" in line
