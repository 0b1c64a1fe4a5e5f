"""What a run may change: the keys outside the mathematics, as docs/moving.md lists them."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, find_declared_group
from components.config.recipe import Recipe
from components.config.resolve import check_continues, is_movable, update_recipe
from components.errors import RecipeError
from tests.components.config.test_key_groups import fields
from tests.components.config.test_relayout import EXPERTS, GRID, Values, composed

PAGE = Path(__file__).parents[3] / "docs" / "moving.md"
OPEN_KEYS = (
    "model.attention.backends.x",
    "model.mixers.x.scan_backends.x",
    "model.mlp.path.x",
    "model.dim",
    "model.mixers.x.key_dim",
    "optimizer.lr",
)
NOT_SETTLED = ("scale.", "children.")  # what composing a recipe reads


def test_the_page_lists_exactly_the_keys_that_the_code_accepts() -> None:
    table = PAGE.read_text().partition("| key | what |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()]
    listed = [key for cell in cells for key in re.findall(r"`([\w.*]+)`", cell)]
    patterns = [key.replace("NAME", "x") for key in listed]
    known = [*fields(Recipe), *OPEN_KEYS]
    by_page = {key for key in known if any(fnmatchcase(f"{key}", one) for one in patterns)}
    by_page |= {key for key in known if any(fnmatchcase(f"{key}.", one) for one in patterns)}
    assert by_page == {key for key in known if is_movable(key)}
    assert all(
        any(fnmatchcase(key, one) or fnmatchcase(f"{key}.", one) for key in known)
        for one in patterns
    )


def test_every_settled_key_outside_the_mathematics_may_change() -> None:
    for key in (*fields(Recipe), *OPEN_KEYS):
        wanted = find_declared_group(key) is not KeyGroup.MATHEMATICS and not key.startswith(
            NOT_SETTLED
        )
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
        {
            "description": "because",
            "published.loss": {"value": 2.0, "unit": "nats", "source": "x"},
        },
        {"precision.master": "float32", "data.verify": "sizes"},
    ],
)
def test_a_settled_recipe_takes_changed_and_new_keys(values: Values) -> None:
    recipe = composed("recipe=teuken7b", "cluster=juwels")
    moved = update_recipe(recipe, values)
    assert moved != recipe
    assert compute_fingerprint(moved) == compute_fingerprint(recipe)
    check_continues(recipe, moved, "run")


@pytest.mark.parametrize("key", ["guard", "tracking", "watchdog"])
def test_a_whole_group_may_be_chosen_anew(key: str) -> None:
    recipe = composed(*GRID)
    assert is_movable(key)
    assert update_recipe(recipe, {key: recipe.model_dump(mode="json")[key]}) == recipe


def test_other_mathematics_is_refused_with_the_keys_that_differ() -> None:
    recipe = composed(*GRID)
    other = composed(*GRID, "optimizer.lr=1e-5", "budget.seed=9")
    said = r"run: here has a different recipe: .*budget\.seed is \d+ there, 9 here.*\n  keep"
    with pytest.raises(RecipeError, match=said):
        check_continues(recipe, other, "here")


def test_the_degrees_of_experts_are_mathematics_where_they_compute() -> None:
    before = composed(*EXPERTS, "parallelism.expert_grad_average=replicas")
    after = composed(
        "recipe=mula7b_a1b",
        "parallelism.expert=2",
        "parallelism.data=2",
        EXPERTS[3],
        "parallelism.expert_grad_average=replicas",
    )
    with pytest.raises(RecipeError, match=r"parallelism\.expert is 4 there, 2 here"):
        check_continues(before, after, "here")
