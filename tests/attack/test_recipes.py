"""Malicious recipe files are refused with their line, before they have any effect.

Each attack is a file under ``recipes/``; ``index.json`` has the line and the message of
its refusal, and the guard that refuses it. Without that guard it is not refused so.
"""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from command.files.yaml_file import MAX_BYTES, read_data
from command.recipe.recipe_file import check_recipe_file
from components.config.recipe import Recipe
from components.errors import RecipeError
from tests.attack.composed import ATTACKS, attack
from tests.attack.mutations import mutate

INDEX: list[dict[str, Any]] = json.loads((ATTACKS / "index.json").read_text("utf-8"))
GUARDED = [one for one in INDEX if one["guard"]]
# What composing reads of ours, and of Hydra's own settings.
READ = (
    *(str(ROOT / room) for room in ("conf", "recipes", "components")),
    *(str(ATTACKS), str(Path(hydra.__file__).parent / "conf")),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a link to a folder outside."""
    outside, here = tmp_path / "outside", tmp_path / "here"
    for place in (outside, here):
        place.mkdir()
    (outside / "secret.txt").write_text("secret", "utf-8")
    (here / "linked").symlink_to(outside)
    monkeypatch.chdir(here)
    return here


def names(attacks: list[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in attacks]


def test_every_file_is_in_the_index_and_attacks_come_in_many_kinds() -> None:
    assert sorted(names(INDEX)) == sorted(file.stem for file in ATTACKS.glob("*.yaml"))
    assert len({one["guard"] for one in GUARDED}) >= 9


def test_every_attack_is_refused_by_line_without_effect(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.composed"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    for one in INDEX:
        refusal = found["refusals"][one["name"]]
        assert refusal.startswith(f"{one['name']}.yaml:{one['line']}"), refusal or one["name"]
        assert one["message"] in refusal
    acts = [event for event in found["events"] if event[1] != "read"]
    assert acts == []
    read = {path for _, kind, path in found["events"] if kind == "read"}
    assert {path for path in read if not path.startswith(READ)} == set()
    assert any(path.endswith("recipes/tag.yaml") for path in read), "the hook recorded nothing"
    assert sorted(path.name for path in folder.iterdir()) == ["linked"]


@pytest.mark.quick("environment_resolver", "key_of_instantiation", "text_behind_a_link")
@pytest.mark.parametrize("one", GUARDED, ids=names(GUARDED))
def test_without_its_guard_an_attack_has_another_outcome(one, folder, monkeypatch):
    module, _, name = one["guard"].rpartition(".")
    monkeypatch.setattr(importlib.import_module(module), name, lambda *_: None)
    try:
        refusal = attack(ATTACKS / f"{one['name']}.yaml")
    except Exception as error:  # noqa: BLE001 (without its guard it may break whatever it likes)
        refusal = repr(error)
    assert one["message"] not in refusal


def test_a_surviving_resolver_stays_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.config.part_nodes.refuse_reference", lambda *_: None)
    survived = composed(ATTACKS / "resolver_that_survives.yaml").model["init_from"]
    assert survived == "${oc.env:HOME}"  # plain text, which nothing resolves later


def test_ungated_environment_is_unread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command.recipe.recipe_file.check_interpolations", lambda *_: None)
    monkeypatch.setenv("HOME", "/home/of/somebody")
    assert "has an unresolved reference" in attack(ATTACKS / "environment_resolver.yaml")


def composed(file: Path) -> Recipe:
    return compose_recipe(read_point([f"recipe={file}"]))


def test_the_user_may_name_any_folder(folder: Path) -> None:
    file = ATTACKS / "absolute_folder.yaml"
    assert "leads out" in attack(file)
    mine = compose_recipe(read_point([f"recipe={file}", "data.folder=/tmp/mine"]))
    assert mine.data.folder == "/tmp/mine"


def test_no_more_than_the_limit_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "huge.yaml").write_text("# \n" * (MAX_BYTES // 3 + 1))
    assert "huge.yaml:333334: huge.yaml is larger than 1,000,000 bytes" in attack(
        Path("huge.yaml")
    )
    monkeypatch.setattr("command.files.yaml_file.refuse_size", lambda *_: None)
    assert "is not a mapping" in attack(Path("huge.yaml"))


def test_devices_and_pipes_are_refused(folder: Path) -> None:
    os.mkfifo("pipe.yaml")
    Path("device.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "device.yaml"):
        assert f"{name} is not a regular file" in attack(Path(name))


def test_a_wide_mapping_is_read_in_linear_time(folder: Path) -> None:
    Path("wide.yaml").write_text("".join(f"k{number}: 1\n" for number in range(8_000)))
    assert "wide.yaml:1: k0: unknown section" in attack(Path("wide.yaml"))


@settings(
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(folder: Path, content: bytes) -> None:
    file = Path("fuzzed.yaml")
    file.write_bytes(content)
    read_or_refuse(file)


def read_or_refuse(file: Path) -> bool:
    """Read a file as a recipe. Any error but a refusal propagates."""
    try:
        recipe = read_data(file, "recipe")
        check_recipe_file(recipe)
    except RecipeError:
        return False
    assert "${oc." not in json.dumps(recipe.tree, default=str)
    return True


MIXTURE = {
    "defaults": ["teuken7b"],
    "name": "mixture",
    "description": "Two sources.",
    "model": {"num_layers": 2, "attention": {"head_dim": 8}},
    "data": {"sources": {"eu": {"files": ["texts/*.txt"]}}, "shares": {"eu": 1.0}},
    "budget": {"total_tokens": 8_192},
}


def test_mutated_recipes_are_read_or_refused(folder: Path) -> None:
    outcomes = Counter[bool]()
    for seed in range(200):
        file = Path("mutated.yaml")
        file.write_text(yaml.safe_dump(MIXTURE, sort_keys=False), "utf-8")
        mutate(file, str(seed))
        outcomes[read_or_refuse(file)] += 1
    assert min(outcomes[True], outcomes[False]) > 20, outcomes
