"""A site card has narrow texts, numbers in ranges and a hash; anything else is refused."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from components.errors import RecipeError
from components.run.site_card import CPU, MOST_BYTES, clean_words, read_card, render_card
from tests.components.run.cards import card_tree, write_card

Change = Callable[[dict[str, Any]], object]


def refusal(file: Path) -> str:
    with pytest.raises(RecipeError) as raised:
        read_card(file, "file")
    return str(raised.value)


def sealed_anew(file: Path, change: Change) -> Path:
    """Write a changed card with a hash that matches, as its author may."""
    tree = card_tree()
    change(tree)
    digest = sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**tree, "sha256": digest}, indent=1))
    return file


def test_a_written_card_is_read_unchanged(tmp_path: Path) -> None:
    card = read_card(write_card(tmp_path / "card.json"), "file")
    assert card.is_of_accelerator
    assert card.run.sizes.num_layers == 16
    assert card.find_value("step") == 1.5
    assert card.find_value("restart") is None
    assert [figure.value for figure in card.iter_figures("all_reduce")] == [10.0, 220.0, 70.0]
    assert {figure.convention for figure in card.figures if figure.name == "all_gather"} == {
        "bus bandwidth over the median time, all groups of a node at once; factor (n - 1) / n"
    }
    assert (tmp_path / "card.json").stat().st_size < 4_096
    file = write_card(tmp_path / "card.json", card_tree("cpu"))
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))  # lines of another system
    card = read_card(file, "file")
    assert (card.is_of_accelerator, card.notice) == (False, CPU)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"value": 1.5', '"value": 0.5'),
        ('"cuda"', '"rocm"'),
        ('"card": 1,', '"card": 1, "date": "2020-01-01",'),  # JSON reads the last one
        ('"nodes": 2,', '"nodes": 2, "nodes": 2,'),
        ('"sha256": "', '"sha256": "0'),
    ],
)
def test_an_edited_card_is_refused(tmp_path: Path, old: str, new: str) -> None:
    file = write_card(tmp_path / "card.json")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    told = refusal(file)
    assert "was edited or damaged: its content does not match its sha256" in told
    assert "request the file again" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tree: tree.update(more=1), "more"),
        (lambda tree: tree["run"].update(path="/home/somebody"), "run.path"),
        (lambda tree: tree["machine"].update(device="<b>GPU</b>"), "machine.device"),
        (lambda tree: tree["machine"].update(processor="a/b"), "machine.processor"),
        (lambda tree: tree["machine"].update(cores=0), "machine.cores"),
        (lambda tree: tree["run"].update(recipe="../teuken7b"), "run.recipe"),
        (lambda tree: tree.update(date="yesterday"), "date"),
        (lambda tree: tree.update(card=2), "card"),
        (lambda tree: tree.update(notice="measured by hand"), "contradicts machine.kind=cuda"),
        (lambda tree: tree["figures"][0].update(value=1e9), "at most 1e+06 is credible"),
        (lambda tree: tree["figures"][0].update(value=-1.0), "figures.0.value"),
        (lambda tree: tree["figures"][0].update(unit="PFLOP/s"), "another unit or convention"),
        (lambda tree: tree["figures"][0].update(name="speed"), "figures.0.name"),
        (lambda tree: tree["figures"].extend(tree["figures"][:1] * 96), "figures"),
        (lambda tree: tree["run"]["sizes"].update(num_layers=10**8), "run.sizes.num_layers"),
    ],
)
def test_a_value_out_of_its_range_is_refused(tmp_path: Path, change: Change, told: str) -> None:
    assert told in refusal(sealed_anew(tmp_path / "card.json", change))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{}", "is not a card"),
        (b"[1]", "is not a card"),
        (b"card: 1", "is not JSON"),
        (b"\xff", "is not UTF-8 text"),
        (b"[" * 100 + b"]" * 100, "is nested deeper"),
        (b" " * (MOST_BYTES + 1), "is larger than 1 MiB"),
    ],
)
def test_another_file_than_a_card_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(content)
    assert told in refusal(file)
    assert "cannot be read as a card" in refusal(tmp_path / "missing.json")


def test_an_invalid_card_is_not_written():
    tree = card_tree()
    tree["figures"][0]["value"] = float("inf")
    with pytest.raises(RecipeError, match=r"figures\.0\.value"):
        render_card(tree)
    assert clean_words("Intel(R) Xeon(R) @ 2.5GHz / <x>") == "Intel(R) Xeon(R)   2.5GHz    x"
    assert clean_words("\u202e") == "unknown"
    assert len(clean_words("a" * 200)) == 80
