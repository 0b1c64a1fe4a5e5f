"""A proof detects faults and names them.

A fault is planted in the ranks, not in the reference process. The
ranks are started once and run all mutations, because starting is slow.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from command.actions import parity as action
from command.arguments import read_point
from command.outcome import Status
from components.config.recipe import Recipe
from components.parity import prover
from components.parity.compare import DOUBLE, Comparison, compare_records, read_records
from components.parity.prover import RANK, draw_data, start_ranks, to_single_process
from components.run.folder import create_run_folder

pytestmark = pytest.mark.long

MUTANT = str(Path(__file__).with_name("mutant.py"))
# Three steps of two layers: a fault shows in the first step.
SMALL = ("model.num_layers=2", "budget.total_tokens=4_608")
DENSE = ("recipe=teuken7b", *SMALL)
MIXTURE = ("recipe=mula7b_a1b", *SMALL)
DATA = (*DENSE, "layouts=[{data: 2, zero: 0}]")
ENDS = (*DENSE, "layouts=[{pipeline: 2, zero: 0}]")
SLICES = (*DENSE, "layouts=[{tensor: 2, zero: 0}]")
CHUNKS = (*DENSE, "layouts=[{context: 2, zero: 0}]")
EXPERTS = (*MIXTURE, "layouts=[{expert: 2, zero: 1}]")
LAYOUTS = (DATA, ENDS, SLICES, CHUNKS, EXPERTS)

Words = tuple[str, ...]
MUTATIONS: tuple[tuple[Words, str], ...] = (
    *((layout, "change_nothing") for layout in LAYOUTS),
    (DATA, "drop_one_reduction"),
    (DATA, "halve_one_norms_gradient"),
    (DATA, "miss_a_sixth_of_the_global_norm"),
    (DATA, "read_the_same_samples"),
    (ENDS, "let_tied_ends_part"),
    (SLICES, "keep_slices_of_norm_gradients"),
    (CHUNKS, "attend_to_own_slice_only"),
    (EXPERTS, "divide_expert_gradients_twice"),
    (EXPERTS, "lose_a_token_in_dispatch"),
)


def recipe_of(words: Words) -> Recipe:
    (recipe,) = action.layouts_of(read_point(words))
    return recipe


def begin(recipe: Recipe, folder: Path, data: Path) -> str:
    create_run_folder(recipe, folder).write_json("data.json", {"folder": str(data)})
    return str(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Words, str], Comparison]:
    """Run all mutations and two references, one dense and one with experts."""
    home = tmp_path_factory.mktemp("mutations")
    references = {layout[0]: to_single_process(recipe_of(layout)) for layout in (DATA, EXPERTS)}
    for name, recipe in references.items():
        draw_data(recipe, home / f"{name}-data")
    alone = [
        begin(recipe, home / name, home / f"{name}-data") for name, recipe in references.items()
    ]
    start_ranks([*RANK, *alone], 1, home / "alone.log")
    words = []
    for place, (layout, mutation) in enumerate(MUTATIONS):
        recipe = recipe_of(layout)
        assert to_single_process(recipe) == references[layout[0]]  # the same microbatches
        words += [mutation, begin(recipe, home / str(place), home / f"{layout[0]}-data")]
    start_ranks([MUTANT, *words], 2, home / "together.log")

    def compared(layout: Words, mutation: str) -> Comparison:
        place = MUTATIONS.index((layout, mutation))
        (reference,) = read_records(home / layout[0], 1)
        return compare_records(reference, read_records(home / str(place), 2), DOUBLE)

    return compared


Found = Callable[[Words, str], Comparison]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_unchanged_layout_is_within_tolerance(found: Found, layout: Words) -> None:
    comparison = found(layout, "change_nothing")
    assert comparison.failure_texts == []
    assert comparison.is_within_tolerance


@pytest.mark.parametrize(
    ("layout", "mutation", "parameter"),
    [
        (DATA, "drop_one_reduction", "layers.1.mlp.up.weight"),
        (DATA, "halve_one_norms_gradient", "layers.0.attention_norm.weight"),
        (ENDS, "let_tied_ends_part", "embedding.weight"),
        (SLICES, "keep_slices_of_norm_gradients", "norm.weight"),
    ],
)
def test_a_wrong_gradient_is_named(found, layout, mutation, parameter):
    comparison = found(layout, mutation)
    assert not comparison.is_within_tolerance
    assert comparison.gradient.where.endswith(parameter)
    assert comparison.gradient.difference > 1e-3


@pytest.mark.parametrize(
    ("layout", "mutation", "where", "least"),
    [
        (CHUNKS, "attend_to_own_slice_only", "step 1, the microbatch from sample 0", 1e-4),
        (EXPERTS, "lose_a_token_in_dispatch", "step 1, the microbatch from sample ", 1e-6),
    ],
)
def test_a_wrong_forward_pass_shows_in_the_first_loss(found, layout, mutation, where, least):
    comparison = found(layout, mutation)
    assert not comparison.is_within_tolerance
    assert comparison.loss.where.startswith(where)
    assert comparison.loss.difference > least


def test_a_wrong_norm_is_found_though_every_gradient_is_right(found: Found) -> None:
    comparison = found(DATA, "miss_a_sixth_of_the_global_norm")
    assert not comparison.is_within_tolerance
    assert comparison.gradient.is_within_tolerance
    assert comparison.gradient_norm.difference == pytest.approx(1 / 6)


def test_unread_data_are_named(found: Found) -> None:
    comparison = found(DATA, "read_the_same_samples")
    assert not comparison.is_within_tolerance
    assert comparison.lacking[0] == "step 1: no rank saw a microbatch from sample 24"


def test_gradients_of_experts_divided_twice_are_named(found: Found) -> None:
    comparison = found(EXPERTS, "divide_expert_gradients_twice")
    assert not comparison.is_within_tolerance
    assert ".mlp." in comparison.gradient.where
    assert comparison.gradient.difference == pytest.approx(0.5)


def test_the_command_fails_and_names_the_problem_of_each_layout(monkeypatch, capfd):
    monkeypatch.setattr(prover, "RANK", (MUTANT, "spoil_two_ranks_and_lose_a_third"))
    words = [*DENSE, "layouts=[{data: 2, zero: 0}, {data: 3, zero: 0}]"]
    outcome = action.run(read_point([*words, "action=parity", "output=json"]))
    assert outcome.status == Status.DOES_NOT_HOLD
    out, err = capfd.readouterr()
    tree = json.loads(out)
    assert tree["holds"] is False
    spoilt, lost = tree["layouts"]
    assert spoilt["holds"] is lost["holds"] is False
    assert spoilt["gradient"]["parameter"] == "layers.1.mlp.up.weight"
    assert spoilt["gradient"]["largest_relative_difference"] > 1e-3
    assert "ValueError: this rank was made to fail" in lost["failure"]
    assert lost["gradient"] == {"largest_relative_difference": None, "parameter": None}
    assert err.splitlines()[:3] == ["one process, for reference", "2 ranks", "3 ranks"]
