"""A recipe that a colleague sent: read as data, and refused before it can do anything."""

import sys
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.files.yaml_file import MAX_BYTES
from components.config.recipe import Recipe
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]


def compose_file(folder: Path, text: str) -> Recipe:
    file = folder / "sent.yaml"
    file.write_text(text, "utf-8")
    return compose_recipe(read_point([f"recipe={file}"]))


def test_a_copy_of_a_recipe_is_the_recipe(tmp_path: Path) -> None:
    text = (ROOT / "recipes" / "teuken7b.yaml").read_text("utf-8")
    by_name = compose_recipe(read_point(["recipe=teuken7b"]))
    assert compose_file(tmp_path, text) == by_name


def test_a_delta_over_a_recipe_states_only_what_is_special(tmp_path: Path) -> None:
    text = "defaults: [teuken7b]\nname: sent\noptimizer: {lr: 1.0e-5}\n"
    recipe = compose_file(tmp_path, text)
    assert recipe.name == "sent"
    assert recipe.reference_cluster == "juwels"
    mini = compose_recipe(read_point(["recipe=teuken7b"]))
    assert recipe.optimizer["lr"] < mini.optimizer["lr"]


HEAD = "defaults: [teuken7b]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hydra: {run: {dir: stray}}", "sent.yaml:1: hydra: unknown section"),
        ("cluster: {nodes: 3}", "a recipe cannot set cluster or scale"),
        ("scale: {name: full}", "a recipe cannot set cluster or scale"),
        (HEAD + "nmae: x", "did you mean name"),
        (
            "defaults: [override /hydra/launcher: joblib]",
            "'override /hydra/launcher' is refused",
        ),
        ("defaults: [override /cluster: juwels]", "'override /cluster' is refused"),
        ("defaults: [override /model: ../../etc/passwd]", "unknown model"),
        ("defaults: [/etc/passwd]", "'/etc/passwd' is refused"),
        ("defaults: {model: x}", "is not a list"),
        (HEAD + "model: {_target_: os.system}", "model._target_: 'os.system' is not"),
        (HEAD + "model: {mlp: {_target_: torch.load, f: x}}", "'torch.load' is not an allowed"),
        (
            HEAD + "model: {_target_: components.model.mlp.torch.hub.load}",
            "'components.model.mlp.torch.hub.load' is not",
        ),
        (HEAD + "model: {_args_: [1]}", "keys of Hydra's own instantiation are not supported"),
        (HEAD + "model: {_recursive_: false}", "model._recursive_: keys of Hydra's own"),
        (HEAD + "description: ${oc.env:HOME}", "description: '${oc.env:HOME}' is refused"),
        (HEAD + "description: ${oc.decode:x}", "is refused"),
        (HEAD + "description: ${${x}:y}", "is refused"),
        (HEAD + "description: !!python/object/apply:os.system [id]", "the tag"),
        (HEAD + "description: &a x\nreference_cluster: *a", "aliases are not allowed"),
        (HEAD + "name: a\nname: b", "'name' is given twice"),
        (HEAD + "model: {1: 2}", "the key 1 is not a string"),
        ("- a list", "is not a mapping"),
        ("a: [", "is not plain YAML"),
        ("[" * 5_000, "is not plain YAML"),
        ("#" * (MAX_BYTES + 1), "is larger than"),
    ],
)
def test_a_hostile_or_broken_file_is_refused_before_anything_happens(
    tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    with pytest.raises(RecipeError) as caught:
        compose_file(tmp_path, text)
    assert message in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {"sent.yaml"}
    assert not {name for name in set(sys.modules) - before if name.startswith("torch")}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        compose_recipe(read_point([f"recipe={tmp_path}/none.yaml"]))


def test_a_file_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "sent.yaml").write_bytes(b"name: \xff")
    with pytest.raises(RecipeError, match="cannot read"):
        compose_recipe(read_point([f"recipe={tmp_path}/sent.yaml"]))
