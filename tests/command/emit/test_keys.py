"""No key of a recipe is dropped in silence: each is said, refused, or no part of training."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from command.actions.export import checks
from command.actions.export.torchtitan import write_files
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.part_nodes import check_nodes
from components.config.recipe import Recipe
from components.config.user_overrides import iterate_leaves
from components.errors import RecipeError
from tests.recipes.compositions import RECIPES, composed_tree

# A recipe that torchtitan can train.
SAYABLE = (
    *("recipe=playbook1b", "model.tied_embeddings=false", "cluster=hopper"),
    *("parallelism.data=8", "parallelism.zero=2"),
)
WORDS = (
    *("none", "auto", "float32", "float64", "all", "matrices", "after", "1-sqrt", "cosine"),
    *("plain", "scaled", "gelu", "full", "interleaved", "gpipe", "layers", "deepspeed"),
    *("layers_and_ends", "best_fit", "each_head", "all_heads", "natural", "replicas"),
)
# What changes no file and is not refused, since in that recipe it changes nothing: rows that
# only pad; float16's scaling in bfloat16; parts of a layout without experts, stages, tensor
# ranks, recomputed layers or sharded moments; and what each trainer does in its own way.
IDLE = {
    *("model.vocab_size", "precision.loss_scale", "parallelism.expert_grad_average"),
    *("parallelism.recompute_every", "parallelism.stage_balance", "data.mixture"),
    *("parallelism.schedule", "parallelism.stages_per_rank", "parallelism.sequence_parallel"),
}
NORM = {
    "_target_": "components.model.norms.Norm",
    "_partial_": True,
    "eps": 1e-3,
    "center": True,
    "weight": True,
    "bias": True,
}
OTHER: dict[str, Any] = {
    "budget.ramp_up": {"start_tokens": 4096, "increment_tokens": 4096, "over_tokens": 9},
    "precision.loss_scale": {"initial": 2.0, "window": 1, "hysteresis": 1, "minimum": 1.0},
    "model.embedding_norm": NORM,
    "model.attention.qk_norm": NORM,
    "data.skip": [[4, 4]],
    "data.tokenizer_folder": "tokens",
    "model.init_from": "weights",
}


@cache
def settled(name: str) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = composed_tree(name, "full")["recipe"]
    return tree


def test_only_keys_of_recipes_are_known() -> None:
    assert len(RECIPES) >= 33
    for name in RECIPES:
        assert list(checks.unknown_keys(settled(name))) == [], name
    tree = {**settled("playbook1b"), "model": {**settled("playbook1b")["model"], "new": 1}}
    assert list(checks.unknown_keys(tree)) == ["model.new"]


def test_recipes_that_torchtitan_cannot_train_have_a_remedy() -> None:
    for name in RECIPES:
        recipe = Recipe.model_validate(settled(name))
        with pytest.raises(RecipeError, match="cannot train this recipe") as refusal:
            write_files(recipe, "asked")
        assert "\n  " in refusal.value.problem
        assert refusal.value.remedy


def changed(value: Any) -> Iterator[Any]:
    """Give other values of a key, the likeliest first."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, 2 * value, value - 1, value / 2)
        case float():
            yield from (value / 2 or 0.1, value / 2 + 0.25)
        case str():
            yield from (word for word in WORDS if word != value)
            yield "other"
        case None:
            yield from (1, 0.5)
        case _:
            yield from ([4096, "full"], [[4, 4]], [])


def with_leaf(tree: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    return {**tree, steps[0]: with_leaf(tree[steps[0]], steps[1:], value)}


def valid(tree: Mapping[str, Any]) -> Recipe:
    """Hold a tree to the schema and to what its parts take, but to no rule between keys."""
    check_nodes(tree)
    return Recipe.model_validate(tree)


@pytest.mark.parametrize(
    ("key", "value", "way"),
    [
        ("parallelism.engine", "deepspeed", "set parallelism.engine=mesh"),
        ("parallelism.offload_optimizer", True, "set parallelism.offload_optimizer=false"),
        ("data.skip", [[4, 4]], "set data.skip=[]"),
        ("precision.master", "float64", "set precision.master=auto"),
    ],
)
def test_values_that_no_recipe_has_are_refused(key: str, value: object, way: str) -> None:
    tree = with_leaf(settled("opensci_1b7"), key.split("."), value)
    with pytest.raises(RecipeError) as refusal:
        write_files(valid(tree), "asked")
    assert f"\n  {key}: " in refusal.value.problem
    assert way in refusal.value.remedy


@pytest.mark.long
def test_another_value_of_any_key_is_another_file_or_is_refused() -> None:
    recipe = compose_recipe(read_point([*SAYABLE, "scale=full"]))
    tree, silent = recipe.model_dump(mode="json"), set()
    written = write_files(recipe, "asked")
    for path, value in iterate_leaves(tree):
        steps = path.split(".")
        above = {".".join(steps[: end + 1]) for end in range(len(steps))}
        if above & checks.OWN or steps[-1] == "_partial_" or path.startswith("data.shares."):
            continue
        for other in (OTHER[path],) if path in OTHER else changed(value):
            try:
                one = valid(with_leaf(tree, steps, other))
            except (ValidationError, RecipeError):
                continue
            silent.add(path)
            try:
                if write_files(one, "asked") != written:
                    silent.remove(path)
                    break
            except RecipeError:
                silent.remove(path)
                break
    assert silent == IDLE
