"""Locks, bundles and comparisons of a recipe that comes from a run of another."""

import json
from pathlib import Path
from typing import Any

import pytest

from command.main import main

FROM = ("from.recipe=teuken7b", "from.at_tokens=3_000_000_000_000", "from.with=optimizer")
WORDS = ("recipe=teuken7b", "scale=full", *FROM)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capfd: Any, *words: str, status: int = 0) -> dict[str, Any]:
    capfd.readouterr()
    assert main([*words, "output=json"]) == status
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


@pytest.mark.long
def test_a_lock_holds_and_names_the_parent_where_another_has_none(capfd: Any) -> None:
    assert main([*WORDS, "action=pack", "file=a.lock.yaml"]) == 0
    assert main(["action=verify", "file=a.lock.yaml"]) == 0
    found = answer(capfd, "action=diff", "a=a.lock.yaml", "b=teuken7b")
    computes = {one["key"] for one in found["differences"]["mathematics"]}
    assert computes == {"from.at_tokens", "from.fingerprint", "from.with"}
    assert [one["key"] for one in found["differences"]["record"]] == ["from.recipe"]


@pytest.mark.long
def test_a_bundle_composes_to_the_same_child(capfd: Any) -> None:
    assert main([*WORDS, "action=pack", "file=b.recipe.yaml"]) == 0
    packed = answer(capfd, "action=show", "recipe=./b.recipe.yaml")
    assert packed["fingerprint"] == answer(capfd, "action=show", *WORDS)["fingerprint"]


def test_a_received_recipe_names_no_run_outside_of_the_folder(capfd: Any) -> None:
    Path("x.yaml").write_text(
        "defaults: [teuken7b]\nname: x\nfrom: {run: /elsewhere, with: weights}\n"
    )
    assert main(["recipe=./x.yaml", "action=show"]) == 2
    said = capfd.readouterr().err
    assert "from.run: '/elsewhere' leads out of the working directory" in said
