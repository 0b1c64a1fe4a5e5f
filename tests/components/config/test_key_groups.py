"""Every key of a recipe is in one group, and the fingerprint follows the mathematics alone."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from components.config.fingerprint import fingerprint_of
from components.config.key_groups import PLACES, KeyGroup, find_declared_group, split_by_group
from components.config.recipe import Recipe
from components.config.schema.types import fields_of
from components.config.user_overrides import iterate_leaves
from tests.components.config.conftest import Compose
from tests.recipes.compositions import RECIPES, SCALES, composed_tree

SAMPLE = [(name, scale) for scale in SCALES for name in RECIPES[::4]]
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


def test_a_new_key_of_a_layout_has_no_group_until_it_is_given_one() -> None:
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


def test_open_sections_compute_but_for_their_kernels() -> None:
    layout = {
        key
        for name, scale in SAMPLE
        for key in split_by_group(composed_tree(name, scale)["recipe"])[KeyGroup.LAYOUT]
        if key.partition(".")[0] in OPEN
    }
    assert layout == {"model.attention.backends", "model.mlp.path"}


EXPERTS = "mula20b_a2b"
DEGREES = {"expert_grad_average": "replicas", "microbatch_sequences": 4}


@pytest.mark.parametrize(("key", "value"), DEGREES.items())
def test_these_degrees_compute_where_there_are_experts_alone(
    key: str, value: object, compose: Compose
) -> None:
    dense = compose("parallelism.microbatch_sequences=2").model_dump(mode="json")
    assert fingerprint_of(
        with_degree(dense, key, value), KeyGroup.MATHEMATICS
    ) == fingerprint_of(dense, KeyGroup.MATHEMATICS)
    sparse = {**dense, "model": {**dense["model"], "mlp": {"num_experts": 8}}}
    assert fingerprint_of(with_degree(sparse, key, value), KeyGroup.MATHEMATICS) != (
        fingerprint_of(sparse, KeyGroup.MATHEMATICS)
    )


def with_degree(tree: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    return {**tree, "parallelism": {**tree["parallelism"], key: value}}


def test_the_order_of_a_schedules_phases_is_mathematics(compose: Compose) -> None:
    tree = compose().model_dump(mode="json")
    phases = tree["schedule"]["phases"]
    turned = {**tree["schedule"], "phases": dict(reversed(phases.items()))}
    other = {**tree, "schedule": turned}
    assert fingerprint_of(other, KeyGroup.MATHEMATICS) != fingerprint_of(
        tree, KeyGroup.MATHEMATICS
    )


def test_every_place_is_a_key_of_the_data() -> None:
    keys = {path.rpartition(".")[2] for path in fields(Recipe) if path.startswith("data.")}
    assert keys | {"dataset"} >= PLACES
