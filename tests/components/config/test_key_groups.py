"""Every key is in one group; the fingerprint has the mathematics, a run may change the rest."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from components.config.fingerprint import compute_fingerprint, fingerprint_of
from components.config.key_groups import PLACES, KeyGroup, find_declared_group, split_by_group
from components.config.recipe import Recipe
from components.config.resolve import check_continues, is_movable, update_recipe
from components.config.schema.types import fields_of
from components.config.user_overrides import iterate_leaves
from components.errors import RecipeError
from tests.components.config.helpers import teuken
from tests.components.config.test_relayout import EXPERTS, GRID, Values, composed
from tests.recipes.compositions import RECIPES, SCALES, composed_tree

SAMPLE = [(name, scale) for scale in SCALES for name in (*RECIPES[::8], "mula7b_a1b")]
OPEN = {"model", "tokenizer", "optimizer", "schedule"}  # a class's constructor is the schema


def fields(kind: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield every key that the typed sections can have; any name of a mapping is ``x``."""
    for name, field in fields_of(kind).items():
        here = f"{path}.{name}" if path else name
        sections = list(sections_in(field.annotation))
        for section, inside in sections:
            yield from fields(section, f"{here}.x" if inside else here)
        if not sections:
            yield here


def sections_in(
    annotation: Any, inside: bool = False
) -> Iterator[tuple[type[BaseModel], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, inside
        return
    origin = get_origin(annotation)
    if origin is tuple:  # a list is one leaf
        return
    mapping = inside or origin not in {None, Union, UnionType, Annotated}
    for one in get_args(annotation):
        yield from sections_in(one, mapping)


def test_every_field_that_a_recipe_can_have_has_a_group() -> None:
    paths = list(fields(Recipe))
    assert len(paths) > 120
    assert {"data.sources.x.licence", "parallelism.zero", "cluster.site.launch"} <= set(paths)
    assert [path for path in paths if find_declared_group(path) is None] == []


def test_a_new_layout_key_needs_a_group() -> None:
    assert find_declared_group("parallelism.new") is None
    assert find_declared_group("data.new") is None
    assert find_declared_group("data.sources.x.new") is None
    tree = composed_tree("teuken7b", "mini")["recipe"]
    with pytest.raises(AssertionError, match=r"parallelism\.new has no key group"):
        split_by_group({**tree, "parallelism": {**tree["parallelism"], "new": 1}})


@pytest.mark.parametrize(("name", "scale"), SAMPLE)
def test_every_leaf_of_a_published_recipe_is_in_one_group(name: str, scale: str) -> None:
    tree = composed_tree(name, scale)["recipe"]
    dealt = split_by_group(tree)
    found = [key for group in KeyGroup for key in dealt[group] if not key.endswith("(order)")]
    assert sorted(found) == sorted(path for path, _ in iterate_leaves(tree))


def test_open_sections_are_mathematics_except_their_kernels() -> None:
    layout = {
        key
        for name, scale in SAMPLE
        for key in split_by_group(composed_tree(name, scale)["recipe"])[KeyGroup.LAYOUT]
        if key.partition(".")[0] in OPEN
    }
    assert layout == {"model.attention.backends", "model.mlp.path"}


def mathematics(tree: dict[str, Any], **sections: dict[str, Any]) -> str:
    """Return the fingerprint of the tree with these keys changed."""
    changed = {name: {**tree[name], **keys} for name, keys in sections.items()}
    return fingerprint_of({**tree, **changed}, KeyGroup.MATHEMATICS)


@pytest.mark.parametrize(
    "degree", [{"expert_grad_average": "replicas"}, {"microbatch_sequences": 4}]
)
def test_these_degrees_are_mathematics_only_with_experts(degree: dict[str, Any]) -> None:
    tree = teuken("parallelism.microbatch_sequences=2").model_dump(mode="json")
    assert mathematics(tree, parallelism=degree) == mathematics(tree)
    experts = {"mlp": {"num_experts": 8}}
    sparse = mathematics(tree, model=experts)
    assert mathematics(tree, model=experts, parallelism=degree) != sparse


def test_the_order_of_a_schedules_phases_is_mathematics() -> None:
    tree = teuken().model_dump(mode="json")
    turned = dict(reversed(tree["schedule"]["phases"].items()))
    assert mathematics(tree, schedule={"phases": turned}) != mathematics(tree)


def test_every_place_is_a_key_of_the_data() -> None:
    keys = {path.rpartition(".")[2] for path in fields(Recipe) if path.startswith("data.")}
    assert keys | {"dataset"} >= PLACES


PAGE = Path(__file__).parents[3] / "docs" / "moving.md"
OPEN_KEYS = (
    *("model.attention.backends.x", "model.mixers.x.scan_backends.x", "model.mlp.path.x"),
    *("model.dim", "model.mixers.x.key_dim", "optimizer.lr"),
)
NOT_SETTLED = ("scale.", "children.")  # what composing a recipe reads


def test_the_page_lists_exactly_the_keys_that_the_code_accepts() -> None:
    table = PAGE.read_text().partition("| key | what |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    listed = [key for cell in cells for key in re.findall(r"`([\w.*]+)`", cell)]
    patterns = [key.replace("NAME", "x") for key in listed]
    known = [*fields(Recipe), *OPEN_KEYS]

    def listed_by(key: str, one: str) -> bool:
        return fnmatchcase(key, one) or fnmatchcase(f"{key}.", one)

    by_page = {key for key in known if any(listed_by(key, one) for one in patterns)}
    assert by_page == {key for key in known if is_movable(key)}
    assert all(any(listed_by(key, one) for key in known) for one in patterns)


def test_every_resolved_key_outside_mathematics_may_change() -> None:
    for key in (*fields(Recipe), *OPEN_KEYS):
        wanted = find_declared_group(key) is not KeyGroup.MATHEMATICS
        wanted &= not key.startswith(NOT_SETTLED)
        wanted |= key == "callbacks"  # each declares what its keys change
        assert is_movable(key) == wanted, key


@pytest.mark.parametrize(
    "values",
    [
        {"cluster.site.environment.NCCL_DEBUG": {"value": "INFO", "reason": "a hang"}},
        {"cluster.site.environment.A.value": "1", "cluster.site.environment.A.reason": "b"},
        {"cluster.site.rank_environment.A": {"value": "$SLURM_LOCALID", "reason": "b"}},
        {"cluster.hours": 3.0, "cluster.jobs": 5, "cluster.smoke": True},
        {"cluster.site.modules": ["load new"], "cluster.site.queue": "other"},
        {"evaluation.every_tokens": 8_192, "tracking.wandb": "none"},
        {"description": "a", "published.loss": {"value": 2.0, "unit": "nats", "source": "x"}},
        {"precision.master": "float32", "data.verify": "sizes"},
    ],
)
def test_a_resolved_recipe_accepts_changed_and_new_keys(values: Values) -> None:
    recipe = composed("recipe=teuken7b", "cluster=juwels")
    moved = update_recipe(recipe, values)
    assert moved != recipe
    assert compute_fingerprint(moved) == compute_fingerprint(recipe)
    check_continues(recipe, moved, "run")


@pytest.mark.parametrize("key", ["guard", "tracking", "watchdog"])
def test_a_whole_group_may_be_replaced(key: str) -> None:
    recipe = composed(*GRID)
    assert is_movable(key)
    assert update_recipe(recipe, {key: recipe.model_dump(mode="json")[key]}) == recipe


def test_other_mathematics_is_refused_with_the_keys_that_differ() -> None:
    recipe = composed(*GRID)
    other = composed(*GRID, "optimizer.lr=1e-5", "budget.seed=9")
    said = r"run: here has a different recipe: .*budget\.seed is \d+ there, 9 here.*\n  keep"
    with pytest.raises(RecipeError, match=said):
        check_continues(recipe, other, "here")


def test_expert_degrees_are_mathematics_if_they_change_results() -> None:
    average = "parallelism.expert_grad_average=replicas"
    before = composed(*EXPERTS, average)
    words = ("parallelism.expert=2", "parallelism.data=2", EXPERTS[3], average)
    after = composed("recipe=mula7b_a1b", *words)
    with pytest.raises(RecipeError, match=r"parallelism\.expert is 4 there, 2 here"):
        check_continues(before, after, "here")
