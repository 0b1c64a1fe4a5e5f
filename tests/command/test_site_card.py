"""A site card from the command line: its run, its verification, and the plan that reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger.save_run import card_row
from benchmarks.ledger.save_run import main as save
from command.arguments import read_point
from command.card.reading import compose_measured
from command.card.request import RESTART_STEPS, STEPS, compose_card, shape_card
from command.composition.compose import compose_recipe
from command.main import main
from components.config.fingerprint import compute_fingerprint, fingerprint_of
from components.config.key_groups import KeyGroup
from components.errors import RecipeError
from components.run.site_card import CardSizes, read_card
from tests.components.run.cards import card_tree, write_card

Said = pytest.CaptureFixture[str]

PLAN = ("action=plan", "recipe=teuken7b", "cluster=juwels", "output=json")
TWO_NODES = ("cluster.nodes=2",)


@pytest.fixture(scope="module")
def fingerprints() -> dict[str, str]:
    """The fingerprints of the run that the tests' card describes."""
    sizes = CardSizes.model_validate(card_tree()["run"]["sizes"])
    words = ["recipe=teuken7b", "cluster=juwels", "scale=full"]
    recipe = compose_card(read_point(words), sizes)
    layout = fingerprint_of(recipe.model_dump(mode="json"), KeyGroup.LAYOUT)
    return {"mathematics": compute_fingerprint(recipe), "layout": layout}


@pytest.fixture
def card(tmp_path: Path, fingerprints: dict[str, str]) -> Path:
    return write_card(tmp_path / "card.json", card_tree(**fingerprints))


def plan(capfd: Said, *words: str) -> Any:
    assert main([*PLAN, *words]) == 0
    return json.loads(capfd.readouterr().out)


def width(tree: Any) -> float:
    """Return the width of the interval of a planned step, as a factor."""
    return float(tree["time"]["step_seconds_high"] / tree["time"]["step_seconds"])


def test_a_card_run_has_full_width_and_the_layers_that_fit() -> None:
    arguments = shape_card(read_point(["recipe=teuken7b", "cluster=juwels", "scale=full"]))
    recipe = compose_recipe(arguments)
    full = compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels", "scale=full"]))
    assert recipe.model["dim"] == full.model["dim"]
    assert 1 < recipe.model["num_layers"] <= full.model["num_layers"]
    assert (recipe.cluster.nodes, recipe.cluster.spare_nodes) == (2, 0)
    degrees = recipe.parallelism
    assert (degrees.data, degrees.tensor, degrees.pipeline) == (2, 2, 2)
    assert recipe.derived_numbers.steps == STEPS + RESTART_STEPS
    assert [span.first_step for span in recipe.token_clock.spans] == [0, STEPS]
    assert recipe.checkpoint.every_tokens == STEPS * recipe.budget.global_batch_tokens
    assert recipe.cluster.hours == pytest.approx(1 / 6)
    words = ["recipe=teuken7b", "cluster=juwels", "scale=full"]  # keys of the user stay
    own = ["model.num_layers=4", "cluster.nodes=1", "parallelism.microbatch_sequences=2"]
    recipe = compose_recipe(shape_card(read_point([*words, *own])))
    assert recipe.model["num_layers"] == 4
    assert (recipe.cluster.nodes, recipe.parallelism.microbatch_sequences) == (1, 2)


def test_a_card_needs_a_layer_that_fits_and_a_layout(capfd: Said) -> None:
    words = ["recipe=bloom176b", "cluster=juwels", "scale=full", "cluster.nodes=1"]
    with pytest.raises(RecipeError, match="one layer per stage does not fit on 1 nodes"):
        shape_card(read_point([*words, "parallelism.tensor=1", "parallelism.pipeline=1"]))
    words = ["recipe=teuken7b", "cluster=juwels", "parallelism=auto", "action=submit"]
    assert main([*words, "card=true"]) == 2
    assert "parallelism: card=true measures the recipe's layout" in capfd.readouterr().err


def test_verification_prints_a_card_and_refuses_an_edited_one(card: Path, capfd: Said) -> None:
    assert main(["action=verify", f"file={card}"]) == 0
    out = capfd.readouterr().out
    assert "intact: measured on accelerators" in out
    assert "teuken7b, scale=full, 2 nodes of juwels, 2027-03-01" in out
    assert "all_reduce 268,435,456 bytes 8 ranks on 2 nodes" in out
    assert main(["action=verify", f"file={card}", "output=json"]) == 0
    assert json.loads(capfd.readouterr().out)["holds"] is True
    card.write_text(card.read_text().replace("1.5", "0.1"))
    for words in (["action=verify", f"file={card}"], [*PLAN, f"calibrate={card}"]):
        assert main(words) == 2
        assert "card.json was edited or damaged" in capfd.readouterr().err


def test_a_card_narrows_the_plan_of_its_machine(card: Path, capfd: Said) -> None:
    before = plan(capfd, *TWO_NODES)
    after = plan(capfd, *TWO_NODES, f"calibrate={card}")
    assert width(before) == pytest.approx(1.5)
    assert width(after) == pytest.approx(1.12)
    assert after["calibration"]["layouts"] == 1
    assert before["time"]["step_seconds"] != after["time"]["step_seconds"]
    assert compose_measured(read_card(card, "calibrate")) is not None
    words = ["model.num_layers=16", f"budget.global_batch_tokens={65_536}"]
    same = plan(capfd, *TWO_NODES, *words, f"calibrate={card}")
    assert same["time"]["step_seconds"] == pytest.approx(1.5, rel=1e-3)  # as it was measured
    write_card(card)  # with fingerprints of no recipe here: only its links and products count
    after = plan(capfd, *TWO_NODES, f"calibrate={card}")
    assert after["calibration"] is None
    assert width(after) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("words", "factor"),
    [
        (("cluster.nodes=8",), 1.20),
        (("cluster.nodes=128",), 1.5),  # nothing is known of so many nodes
        (("cluster.nodes=2", "parallelism.tensor=4"), 1.25),  # only links and products count
    ],
)
def test_the_interval_grows_with_the_distance_from_the_card(card, capfd, words, factor):
    assert width(plan(capfd, *words, f"calibrate={card}")) == pytest.approx(factor)


def test_cpu_card_is_no_plan(tmp_path: Path, fingerprints: dict[str, str], capfd: Said) -> None:
    card = write_card(tmp_path / "card.json", card_tree("cpu", **fingerprints))
    before = plan(capfd, *TWO_NODES)
    assert main([*PLAN, *TWO_NODES, f"calibrate={card}"]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["time"] == before["time"]
    assert "measured on CPUs: no measurement of an accelerator" in told.err
    assert "the plan is unchanged: juwels has cuda devices" in told.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cluster=hopper",), "measured juwels, but the plan is for hopper"),
        (("calibrate=[card.json,run]",), "is a card, but 2 paths are given"),
        (("calibrate=[run]",), "a calibration reads run folders"),
    ],
)
def test_card_and_contradicting_words(card, folder, capfd, words, told):
    own = {"recipe": "teuken7b", "calibrate": "card.json"}
    own |= dict(word.split("=", 1) for word in words)
    assert main(["action=plan", *(f"{key}={value}" for key, value in own.items())]) == 2
    assert told in capfd.readouterr().err


def test_accelerator_card_is_a_row(card, tmp_path, fingerprints, capsys):
    row = card_row(card)
    assert (row["recipe"], row["cluster"], row["ranks"]) == ("teuken7b", "juwels", 8)
    assert (row["step_seconds"], row["peak_memory_bytes"]) == (1.5, 30e9)
    assert "model.num_layers" in row["changed"]
    card = write_card(tmp_path / "card.json", card_tree("cpu", **fingerprints))
    assert save([str(card)]) == 2
    assert "measured on CPUs" in capsys.readouterr().err
    write_card(card, card_tree(recipe="teuken9b"))
    assert main(["action=plan", f"calibrate={card}"]) == 2
    assert "the card names 'teuken9b', which is not here" in capsys.readouterr().err
    assert save([str(write_card(card))]) == 2
    assert "has no step of teuken7b at full width as it is here" in capsys.readouterr().err
