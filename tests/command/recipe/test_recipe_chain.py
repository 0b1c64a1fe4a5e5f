"""A recipe starts from others, by name or by path, and replaces what is whole."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.config.recipe import Recipe
from components.errors import RecipeError

Said = pytest.CaptureFixture[str]


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(list(words)))


def refusal(*words: str) -> str:
    with pytest.raises(RecipeError) as caught:
        composed(*words)
    return str(caught.value)


def example(name: str) -> str:
    """A recipe that `docs/adding.md` prints."""
    text = (ROOT / "docs" / "adding.md").read_text("utf-8")
    return text.partition(f"```yaml\n# {name}.yaml\n")[2].partition("```")[0]


def test_the_example_of_the_page_works_by_path_and_by_name(clone: Path, work: Path) -> None:
    write(work / "narrow.yaml", example("narrow"))
    write(clone / "recipes" / "narrow.yaml", example("narrow"))
    by_path, by_name = composed("recipe=./narrow.yaml"), composed("recipe=narrow")
    assert by_path == by_name
    assert by_name.name == "narrow"
    assert by_name.optimizer["lr"] == composed("recipe=teuken7b").optimizer["lr"] / 2


@pytest.mark.quick("6e-4", "+6e-4")
@pytest.mark.parametrize("text", ["6e-4", "6E-4", "+6e-4", "6_0e-5"])
def test_every_spelling_of_a_float_is_a_float(text: str, clone: Path, work: Path) -> None:
    content = f"defaults: [bloom560m]\nname: r\noptimizer: {{lr: {text}}}\n"
    write(work / "r.yaml", content)
    write(clone / "recipes" / "r.yaml", content)
    words = [["recipe=./r.yaml"], ["recipe=r"], ["recipe=bloom560m", f"optimizer.lr={text}"]]
    found = [composed(*one, "scale=full", "cluster=jean_zay").optimizer["lr"] for one in words]
    assert found == pytest.approx([6e-4] * 3)


CHAIN = {
    "base": "defaults: [bloom560m]\nname: base\nmodel: {dropout: 0.2}\n",
    "middle": "defaults: [./base]\nname: middle\noptimizer: {beta1: 0.7, beta2: 0.9}\n",
    "top": "defaults: [./middle.yaml]\nname: top\noptimizer: {beta2: 0.8}\n",
}


def test_a_chain_of_recipes_is_merged_from_the_base(work: Path) -> None:
    for name, text in CHAIN.items():
        write(work / f"{name}.yaml", text)
    recipe = composed("recipe=./top.yaml")
    assert recipe.name == "top"
    assert recipe.model["dropout"] == 0.2
    assert (recipe.optimizer["beta1"], recipe.optimizer["beta2"]) == (0.7, 0.8)
    text = "defaults: [teuken7b]\nname: sent\noptimizer: {lr: 1.0e-5}\n"
    recipe = composed(f"recipe={write(work / 'sent.yaml', text)}")
    assert (recipe.name, recipe.reference_cluster) == ("sent", "juwels")
    assert recipe.optimizer["lr"] < composed("recipe=teuken7b").optimizer["lr"]


def test_the_strongest_choice_of_a_group_wins(work: Path) -> None:
    write(work / "base.yaml", "defaults: [bloom560m, override /model: bloom1b1]\nname: base\n")
    write(work / "top.yaml", "defaults: [override /model: bloom3b, ./base]\nname: top\n")
    full = ("scale=full", "cluster=jean_zay")
    layers = [
        composed(f"recipe=./{name}.yaml", *full, *words).model["dim"]
        for name, words in (("base", ()), ("top", ()), ("top", ("model=bloom7b1",)))
    ]
    assert layers == [1536, 2560, 4096]


def test_self_sets_the_position_of_a_recipes_own_keys(work: Path) -> None:
    write(work / "base.yaml", CHAIN["base"])
    write(work / "weak.yaml", "defaults: [_self_, ./base]\nname: weak\ndescription: Weak.\n")
    recipe, base = composed("recipe=./weak.yaml"), composed("recipe=bloom560m")
    assert (recipe.name, recipe.description) == ("base", base.description)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [./nope]", "r.yaml:1: defaults: "),
        ("defaults: [base]", "unknown recipe: 'base'\n  known: "),
        ("defaults: [../outside/r]", "leads out of the folder of r.yaml, which was received"),
        ("defaults: [~/r]", "'~/r' is refused"),
        ("defaults: [./broken]", "broken.yaml:1: nmae: unknown section"),
        ("name: r\nmodel: {_replace_: 1}", "r.yaml:2: model._replace_: expected true, got 1"),
        ("name: r\n_replace_: true", "r.yaml:2: _replace_: unknown section"),
        ("name: r", "defaults: no tokenizer is selected\n  write defaults: [NAME] with"),
    ],
)
def test_wrong_start_is_refused_with_remedy(text: str, message: str, work: Path) -> None:
    write(work / "r.yaml", text)
    write(work / "base.yaml", CHAIN["base"])
    write(work / "broken.yaml", "nmae: x\n")
    write(work.parent / "outside" / "r.yaml", CHAIN["base"])
    (work / "linked").symlink_to(work.parent / "outside")
    (work / "loop.yaml").symlink_to("loop.yaml")
    assert message in refusal("recipe=./r.yaml")
    assert refusal("recipe=./narrow.yml").endswith("(a file path must end in .yaml)")


def test_multiplying_includes_are_counted_not_followed(work: Path) -> None:
    write(work / "r0.yaml", "defaults: [bloom560m]\nname: r\n")
    for level in range(1, 31):
        start = f"./r{level - 1}"
        write(work / f"r{level}.yaml", f"defaults: [{start}, {start}]\nname: r\n")
    assert "starts from more than 30 files" in refusal("recipe=./r30.yaml")
    for level in range(1, 40):
        write(work / f"r{level}.yaml", f"defaults: [./r{level - 1}]\nname: r\n")
    assert "more than 30" in refusal("recipe=./r39.yaml")


TWO = "data: {shares: {mine: 1.0}, sources: {mine: {placeholder: eu24/de}}}\n"


def test_each_recipe_of_a_chain_replaces_the_mixture(work: Path) -> None:
    write(work / "one.yaml", f"defaults: [mula1b]\nname: one\n{TWO}")
    third = "data: {shares: {mine: 0.5, two: 0.5}, sources: {two: {placeholder: eu24/en}}}\n"
    write(work / "two.yaml", f"defaults: [./one]\nname: two\n{third}")
    full = ("scale=full", "cluster=aurora")
    assert dict(composed("recipe=./one.yaml", *full).data.shares) == {"mine": 1.0}
    assert dict(composed("recipe=./two.yaml", *full).data.shares) == {"mine": 0.5, "two": 0.5}


def test_phases_are_merged_and_their_shares_replaced(work: Path) -> None:
    phase = "phases: {late: {from_fraction: 0.5, shares: {en: 0.5, de: 0.5}}}"
    write(work / "one.yaml", f"defaults: [teuken7b]\nname: one\ndata: {{{phase}}}\n")
    other = "data: {phases: {late: {shares: {fr: 1.0}}}}\n"
    write(work / "two.yaml", f"defaults: [./one]\nname: two\n{other}")
    recipe = composed("recipe=./two.yaml", "scale=full", "cluster=juwels")
    late = recipe.data.phases["late"]
    assert (late.from_fraction, dict(late.shares)) == (0.5, {"fr": 1.0})


def test_marked_mapping_replaces_the_one_below(work: Path) -> None:
    sources = (
        "data: {sources: {_replace_: true, mine: {placeholder: eu24/de}}, shares: {mine: 1.0}}"
    )
    one = f"defaults: [mula1b]\nname: one\n{sources}\npublished: {{_replace_: true}}\n"
    write(work / "one.yaml", one)
    third = "data: {sources: {two: {placeholder: eu24/en}}, shares: {mine: 0.5, two: 0.5}}\n"
    write(work / "two.yaml", f"defaults: [./one]\nname: two\n{third}")
    full = ("scale=full", "cluster=aurora")
    one_, two = (composed(f"recipe=./{name}.yaml", *full) for name in ("one", "two"))
    assert (set(one_.data.sources), set(two.data.sources)) == ({"mine"}, {"mine", "two"})
    assert dict(one_.published) == dict(two.published) == {}


def test_mark_is_refused_elsewhere(work: Path, capfd: Said) -> None:
    assert main(["recipe=bloom560m", "data.sources._replace_=true", "action=show"]) == 2
    tree: dict[str, Any] = {"defaults": ["bloom560m"], "name": "r"}
    tree["citations"] = [{"_replace_": True}]
    write(work / "r.yaml", yaml.safe_dump(tree))
    assert "keys of Hydra's own instantiation" in refusal("recipe=./r.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [teuken7b]\nnmae: x", "did you mean name"),
        ("defaults: {model: x}", "is not a list"),
        ("defaults: [teuken7b]\nmodel: {_recursive_: false}", "_recursive_: keys of Hydra"),
        ("- a list", "is not a mapping"),
        ("[" * 5_000, "is not plain YAML"),
    ],
)
def test_a_broken_file_is_refused(text: str, message: str, work: Path) -> None:
    """What is hostile, too: the attacks of tests/attack/recipes."""
    write(work / "sent.yaml", text)
    assert message in refusal("recipe=./sent.yaml")
    assert [path.name for path in work.iterdir()] == ["sent.yaml"]
