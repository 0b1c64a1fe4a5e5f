"""A run goes on in another layout, and what it computes stays."""

import json
from functools import cache
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.resolve import SECTIONS, check_movable, update_recipe
from components.errors import RecipeError
from tests.components.config.helpers import read_values, refusals

TEUKEN = ("recipe=teuken7b",)
GRID = (*TEUKEN, "cluster.ranks=8")  # dealt 2 x 2 x 2
EXPERTS = (
    "recipe=mula7b_a1b",
    "parallelism.expert=4",
    "parallelism.data=1",
    "parallelism.microbatch_sequences=1",
)
Values = dict[str, Any]
ALONE = {"parallelism.tensor": 1, "parallelism.pipeline": 1}


@cache
def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(words))


def degrees(recipe: Recipe) -> tuple[int, ...]:
    layout = recipe.parallelism
    return layout.data, layout.tensor, layout.pipeline, layout.data_shard, recipe.cluster.ranks


def dump(recipe: Recipe) -> dict[str, Any]:
    tree: dict[str, Any] = recipe.model_dump(mode="json")
    return tree


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"parallelism.data": 4}, (4, 2, 2, 4, 16)),
        ({"cluster.ranks": 4}, (1, 2, 2, 1, 4)),
        ({"parallelism.tensor": 1}, (2, 1, 2, 2, 4)),
        (ALONE, (2, 1, 1, 2, 2)),
        ({**ALONE, "cluster.ranks": 1}, (1, 1, 1, 1, 1)),
        ({**ALONE, "cluster.ranks": 8, "parallelism.tensor": 4}, (2, 4, 1, 2, 8)),
        ({"cluster.ranks": 16, "parallelism.data_shard": 2}, (4, 2, 2, 2, 16)),
        ({"cluster.ranks": 16, "parallelism.data": "auto"}, (4, 2, 2, 4, 16)),
        ({"checkpoint.keep": 5}, (2, 2, 2, 2, 8)),
        ({}, (2, 2, 2, 2, 8)),
    ],
)
def test_unnamed_keys_stay_or_are_derived(values: Values, expected: tuple[int, ...]) -> None:
    moved = update_recipe(composed(*GRID, "parallelism.microbatch_sequences=1"), values)
    assert degrees(moved) == expected
    cluster = moved.cluster
    assert (cluster.nodes, cluster.devices_per_node) == (1, moved.cluster.ranks)


@pytest.mark.parametrize(
    "values",
    [
        {"parallelism.data": 4, "checkpoint.every_tokens": 4_096},
        {**ALONE, "cluster.ranks": 1},
        {"parallelism.schedule": "gpipe", "parallelism.recompute": "full"},
        {"cluster.device": "cpu", "parallelism.zero": 2},
    ],
)
def test_computed_values_stay(values: Values) -> None:
    recipe = composed(*GRID, "parallelism.microbatch_sequences=1")
    moved = update_recipe(recipe, values)
    before, after = dump(recipe), dump(moved)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {key.partition(".")[0] for key in values} | (changed & {"cluster"})
    assert changed <= set(SECTIONS)
    assert compute_fingerprint(moved) == compute_fingerprint(recipe)


def test_a_recipe_moved_back_is_unchanged() -> None:
    recipe = composed(*GRID, "parallelism.microbatch_sequences=1")
    away = update_recipe(recipe, {"parallelism.data": 8, "parallelism.tensor": 1})
    assert away != recipe
    assert update_recipe(away, {"parallelism.data": 2, "parallelism.tensor": 2}) == recipe


def test_a_moved_recipe_is_read_unchanged() -> None:
    order = ["data", "pipeline", "expert", "context", "tensor"]
    values = {"parallelism.recompute": ["mlp"], "parallelism.rank_order": order}
    moved = update_recipe(composed(*GRID), values)
    assert moved.parallelism.rank_order == tuple(order)
    assert check_recipe(json.loads(json.dumps(dump(moved)))) == moved


def test_a_run_changes_its_engine() -> None:
    recipe = composed(*GRID, "precision.compute=float32")
    moved = update_recipe(recipe, {**ALONE, "parallelism.engine": "deepspeed"})
    assert (moved.parallelism.engine, moved.parallelism.data) == ("deepspeed", 2)


def test_a_chosen_shard_stays() -> None:
    words = ("parallelism.data_shard=2", "parallelism.zero=1")
    recipe = composed(*TEUKEN, "cluster.ranks=4", "parallelism.data=4", *words)
    alone = {"parallelism.data": 2, "parallelism.microbatch_sequences": 4}
    assert update_recipe(recipe, {"parallelism.data": 8, **alone}).parallelism.data_shard == 2
    message = r"parallelism\.data_shard: 2 does not divide data x expert = 1"
    with pytest.raises(RecipeError, match=message):
        update_recipe(recipe, {**alone, "parallelism.data": 1})


def test_the_devices_of_a_clusters_node_stay(full_tree: dict[str, Any]) -> None:
    tree = json.loads(json.dumps(full_tree))
    tree["cluster"] |= {"scheduler": "slurm", "devices_per_node": 4, "nodes": 128}
    moved = update_recipe(check_recipe(tree), {"parallelism.data": 64})
    assert (moved.cluster.nodes, moved.cluster.devices_per_node) == (64, 4)
    said = r"cluster\.devices_per_node: 2 ranks are not a multiple"
    with pytest.raises(RecipeError, match=said):
        update_recipe(check_recipe(tree), {**ALONE, "cluster.ranks": 2})


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
optimizer.lr=0.0001
    resume: a resumed run cannot change optimizer\.lr; it can change parallelism\.\*, \
    cluster\.\*, checkpoint\.\*, evaluation\.\*, guard\.\*, profiler\.\*, tracking\.\*, \
    watchdog\.\*, trainer\.\*, callbacks\.\*, logger\.\*
    remove optimizer
parallelism.tensr=2 -> parallelism\.tensr: unknown key -> did you mean tensor
parallelism.tensor.x=2 -> parallelism\.tensor\.x: unknown key -> did you mean t
checkpoint.kept=2 -> checkpoint\.kept: unknown key -> did you mean keep
guard.non_finite.mst=2 -> guard\.non_finite\.mst: unknown key -> did you mean mo
guard.loss_spike.most=2 -> guard\.loss_spike\.most: unknown key
checkpoint.keep=0 -> checkpoint\.keep: input should be greater than 0
parallelism.tensor=auto -> parallelism\.tensor: .*integer, got 'auto'
cluster.ranks=all -> cluster\.ranks: .*integer, got 'all'
cluster.ranks=6 -> cluster\.ranks: 6 is not a multiple of .* = 4 -> .*4 and 8
cluster.ranks=6 parallelism.data=2 -> parallelism: data 2 x .* = 8 ranks
parallelism.data=16 -> 16 sequences .* 16 data ranks x 2 sequences
"""),
)
def test_refusals_have_a_remedy(words: str, message: str) -> None:
    recipe = composed(*GRID, "parallelism.microbatch_sequences=2")
    with pytest.raises(RecipeError, match=message):
        update_recipe(recipe, read_values(words))


def test_the_data_folder_may_change() -> None:
    recipe = composed(*GRID)
    moved = update_recipe(recipe, {"data.folder": "/scratch/prepared"})
    assert (moved.data.folder, compute_fingerprint(moved)) == (
        "/scratch/prepared",
        compute_fingerprint(recipe),
    )
    as_it_is = {"data.tokenizer_folder": "none", "model.init_from": "none"}
    assert update_recipe(recipe, as_it_is) == recipe
    for key in as_it_is:
        with pytest.raises(RecipeError, match="differs from 'n"):
            update_recipe(recipe, {key: "/elsewhere"})


@pytest.mark.parametrize("key", ["cluster", "parallelism", "recipe", "run", "model.dim"])
def test_resume_refuses_choices_of_mathematics_or_machine(key: str) -> None:
    check_movable(["parallelism.data", "cluster.ranks", "checkpoint.keep", "guard.loss_spike"])
    with pytest.raises(
        RecipeError, match=rf"cannot change {key}; .*\n  remove {key}, or start a new run"
    ):
        check_movable(["parallelism.data", key])


@pytest.mark.parametrize("key", ["budget.total_tokens", "schedule", "schedule.total_tokens"])
def test_another_budget_or_schedule_needs_a_branch(key: str) -> None:
    with pytest.raises(RecipeError, match=r"from\.run=FOLDER from\.with=optimizer") as caught:
        check_movable([key])
    assert f"remove {key}, or start a new run" in caught.value.remedy
    with pytest.raises(RecipeError) as other:
        check_movable(["budget.global_batch_tokens"])
    assert "from.run" not in other.value.remedy


@pytest.mark.parametrize(
    ("words", "values", "message"),
    [
        (
            (),
            {"parallelism.expert_grad_average": "replicas"},
            r"parallelism\.expert_grad_average: cannot change from ranks to replicas: .*\n  "
            r"keep .*=ranks",
        ),
        (
            ("parallelism.expert_grad_average=replicas",),
            {"parallelism.expert": 2},
            r"parallelism\.expert: cannot change from 4 to 2: with expert_grad_average=.*\n"
            r"  keep parallelism\.expert=4, or",
        ),
        (
            (),
            {"parallelism.microbatch_sequences": 2},
            r"parallelism\.microbatch_sequences: cannot change from 1 to 2: routers .* each "
            r"microbatch\n  keep parallelism\.microbatch_sequences=1, or",
        ),
    ],
)
def test_changes_of_expert_mathematics_are_refused(words, values, message):
    recipe = composed(*EXPERTS, *words)
    with pytest.raises(RecipeError, match=message):
        update_recipe(recipe, values)


def test_experts_move_to_fewer_ranks() -> None:
    moved = update_recipe(composed(*EXPERTS), {"parallelism.expert": 2})
    assert (moved.parallelism.data_shard, moved.cluster.ranks) == (2, 2)
