"""``action=parity``: its layouts, refusals and output."""

import json
import re
from typing import Any

import pytest

from command.actions import parity as action
from command.arguments import read_point
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.parity.compare import Comparison, Largest
from components.parity.prover import ParityProof, to_single_process


def layouts(*words: str) -> list[Recipe]:
    return list(action.layouts_of(read_point(["recipe=teuken7b", *words])))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("cluster.ranks=8", ["8 ranks: 2 x 2 x 2"]),
        (
            "layouts=[{data: 2, tensor: 2}, {pipeline: 3, schedule: gpipe}]",
            ["4 ranks: 2 x 2 x 1", "3 ranks: 1 x 1 x 3"],
        ),
        # With both, the layout for the ranks comes first.
        ("cluster.ranks=8 layouts=[{data: 2}]", ["8 ranks: 2 x 2 x 2", "2 ranks: 2 x 1 x 1"]),
    ],
)
def test_degrees_follow_from_the_ranks_or_the_ranks_from_the_degrees(words, expected):
    found = layouts(*re.split(r" (?=layouts)", words))
    degrees = [(one.cluster.ranks, one.parallelism) for one in found]
    assert [
        f"{ranks} ranks: {one.data} x {one.tensor} x {one.pipeline}" for ranks, one in degrees
    ] == expected
    assert found[0].parallelism.sequence_parallel
    assert ("gpipe" in words) == (found[-1].parallelism.schedule == "gpipe")


def test_one_rank_is_not_compared_with_itself() -> None:
    for words in ((), ("cluster.ranks=1",)):
        with pytest.raises(RecipeError, match=r"cluster\.ranks: one rank .*itself\n  write c"):
            layouts(*words)
    assert len(layouts("parallelism.engine=deepspeed")) == 1


def test_keys_of_the_command_apply_to_all_layouts() -> None:
    found = layouts("parallelism.zero=2", "layouts=[{data: 2}, {data: 3}, {data: 4, zero: 3}]")
    assert [recipe.parallelism.zero for recipe in found] == [2, 2, 3]


@pytest.mark.parametrize("name", ["bloom176b", "gpt20b", "mula20b_a2b", "playbook8b"])
def test_a_proof_computes_in_float64_without_dropout(name: str) -> None:
    arguments = read_point([f"recipe={name}", "layouts=[{data: 2}, {data: 3}]"])
    for recipe in action.layouts_of(arguments):
        assert recipe.model["dropout"] == recipe.model["attention"]["dropout"] == 0
        section = recipe.precision
        assert {section.compute, section.accumulate, section.reduce} == {"float64"}
        assert section.loss_scale == "none"
        assert recipe.scale.name == "parity"


def test_the_users_scale_is_used() -> None:
    (recipe,) = layouts("scale=mini", "cluster.ranks=2")
    assert recipe.scale.name == "mini"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.dropout=0.1", r"model\.dropout: action=parity sets 0\.0\n  remove model\.dr"),
        ("precision.compute=float32", r"precision\.compute: action=parity sets float64"),
        ("layouts=[3]", r"layouts\.0: input should be a valid dictionary, got 3"),
        ("layouts=[{sensor: 2}]", r"parallelism\.sensor: unknown key"),
        ("layouts=[{data: 5}]", r"budget\.global_batch_tokens: 48 sequences per step are not"),
    ],
)
def test_what_cannot_be_proved_is_refused_before_a_process_starts(word, message):
    with pytest.raises(RecipeError, match=message):
        layouts(word)


def test_deepspeed_is_compared_in_float32() -> None:
    words = "layouts=[{data: 2}, {data: 2, engine: deepspeed, zero: 3}]"
    ours, theirs = (proof(recipe, 2e-16) for recipe in layouts(words))
    assert (ours.compute_dtype, theirs.compute_dtype) == ("float64", "float32")
    section = theirs.recipe.precision
    assert {section.compute, section.accumulate, section.reduce} == {"float32"}
    tree: dict[str, Any] = action.as_json([theirs])
    assert tree["precision"] == "float32"
    assert (tree["tolerance"], tree["loss"]["tolerance"]) == (1e-5, 1e-6)
    alone = to_single_process(theirs.recipe)
    assert alone.parallelism.engine == "mesh"


def test_the_table_names_the_limits_of_deepspeed(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = "{data: 2, engine: deepspeed, zero: 2, offload_optimizer: true}"
    recipes = layouts(f"layouts=[{{data: 2}}, {theirs}]")
    action.print_proofs([proof(recipe, 2e-16) for recipe in recipes])
    out = capsys.readouterr().out
    assert "data 2, DeepSpeed, ZeRO 2, offloaded" in out
    assert "compute in float64 or float32" in out
    assert "DeepSpeed has no float64" in out


def proof(recipe: Recipe, gradient: float, *lacking: str) -> ParityProof:
    comparison = Comparison(
        loss=Largest(1e-16, "step 2, the microbatch from sample 48", 0, 1e-10),
        gradient_norm=Largest(2e-16, "step 1", 0, 1e-8),
        gradient=Largest(gradient, "layers.0.mlp.up.weight", 1, 1e-8),
        weight=Largest(3e-16, "embedding.weight", 1, 1e-8),
        lacking=lacking,
    )
    return ParityProof(
        recipe=recipe,
        comparison=comparison,
        float32_loss_difference=1e-7,
        failure="",
        seconds=12.34,
    )


def failed(recipe: Recipe) -> ParityProof:
    return ParityProof(
        recipe=recipe,
        comparison=None,
        float32_loss_difference=None,
        failure="exit status 1: ValueError: no",
        seconds=3.0,
    )


def test_one_layout_is_one_object() -> None:
    (recipe,) = layouts("cluster.ranks=2")
    tree: dict[str, Any] = action.as_json([proof(recipe, 2e-16)])
    assert tree["holds"] is True
    assert tree["tolerance"] == 1e-8
    assert tree["loss"]["largest_relative_difference"] == 1e-16
    assert tree["gradient"] == {
        "largest_relative_difference": 2e-16,
        "parameter": "layers.0.mlp.up.weight",
    }
    assert tree["layout"]["data"] == 2
    assert tree["problems"] == []


def test_one_failed_layout_fails_all() -> None:
    (recipe,) = layouts("cluster.ranks=2")
    tree: dict[str, Any] = action.as_json([proof(recipe, 2e-16), proof(recipe, 0.5)])
    assert tree["holds"] is False
    assert [layout["holds"] for layout in tree["layouts"]] == [True, False]


def test_json_has_null_for_what_is_no_number_and_the_keys_of_ranks_that_failed() -> None:
    (recipe,) = layouts("cluster.ranks=2")
    proofs = [proof(recipe, float("nan")), proof(recipe, float("inf")), failed(recipe)]
    for tree in (dict[str, Any](action.as_json([one])) for one in proofs):
        assert tree["holds"] is False
        assert tree["gradient"]["largest_relative_difference"] is None
        json.dumps(tree, allow_nan=False)
    assert tree["failure"] == "exit status 1: ValueError: no"
    assert tree["gradient"] == {"largest_relative_difference": None, "parameter": None}


def test_the_table_names_the_layout_the_verdict_and_what_is_wrong(capsys):
    recipes = layouts("layouts=[{data: 2, tensor: 2}, {pipeline: 2}, {data: 2}]")
    (sharded,) = layouts("layouts=[{data: 4, data_shard: 2, zero: 3}]")
    action.print_proofs([
        proof(sharded, 2e-16),
        proof(recipes[0], 2e-16),
        proof(recipes[1], 0.5, *[f"weight/{n}: on no rank" for n in range(9)]),
        failed(recipes[2]),
    ])
    out = capsys.readouterr().out
    assert "data 2 x tensor 2, ZeRO 1, sequence parallel" in out
    assert "data 4, ZeRO 3 over 2 " in out
    assert "pipeline 2, ZeRO 1, 1f1b: weight/0: on no rank" in out
    assert "... and 5 more" in out
    assert "data 2, ZeRO 1: exit status 1: ValueError: no" in out
    assert out.count("DOES NOT HOLD") == 2
    assert "compute in float64 with dropout 0" in out
