"""The three GPT recipes, value by value against the scaling study's own scripts."""

from functools import cache, reduce
from typing import Any

import pytest

from command.actions.show import as_json
from command.arguments import read_point
from command.compose import compose_recipe


@cache
def shown(name: str, *words: str) -> dict[str, Any]:
    """What ``action=show output=json`` prints for the recipe on its home machine."""
    return dict(as_json(compose_recipe(read_point([f"recipe={name}", *words]))))


def value(name: str, path: str) -> Any:
    home = f"cluster={HOMES[name]}"
    return reduce(lambda tree, step: tree[step], path.split("."), shown(name, home))


HOMES = dict.fromkeys(("gpt3b6", "gpt20b", "gpt175b"), "smng_p2")

COMMON: dict[str, Any] = {
    "recipe.model.vocab_size": 50_257,
    "recipe.model.tied_embeddings": True,
    "recipe.model.dropout": 0.1,
    "recipe.model.positions._target_": "components.model.positions.Learned",
    "recipe.model.positions.num_positions": 2_048,
    "recipe.model.attention.bias": True,
    "recipe.model.attention.qk_norm": None,
    "recipe.model.attention.dropout": 0.1,
    "recipe.model.mlp.activation": "gelu",
    "recipe.model.mlp.gated": False,
    "recipe.model.mlp.bias": True,
    "recipe.model.norm.eps": 1e-5,
    "recipe.model.norm.center": True,
    "recipe.model.norm.bias": True,
    "recipe.model.embedding_norm": None,
    "recipe.model.initialization.std": 0.02,
    "recipe.model.initialization.residual": "scaled",
    "recipe.tokenizer.vocab_size": 50_257,
    "recipe.tokenizer.eod": "<|endoftext|>",
    "recipe.optimizer._target_": "components.optim.adam.Adam",
    "recipe.optimizer.lr": 1.5e-4,
    "recipe.optimizer.beta1": 0.9,
    "recipe.optimizer.beta2": 0.999,
    "recipe.optimizer.eps": 1e-8,
    "recipe.optimizer.weight_decay": 0.01,
    "recipe.optimizer.clip_norm": 1.0,
    "recipe.schedule.start": 1.0,
    "recipe.schedule.end": 0.0,
    "recipe.budget.sequence_length": 2_048,
    "recipe.budget.ramp_up": "none",
    "recipe.budget.seed": 1_234,
    "recipe.precision.compute": "bfloat16",
    "recipe.precision.accumulate": "bfloat16",
    "recipe.precision.reduce": "bfloat16",
    "recipe.data.shares": {"bookcorpus": 1.0},
    "recipe.parallelism.recompute": "full",
    "recipe.parallelism.schedule": "1f1b",
    "recipe.parallelism.sequence_parallel": False,
    "recipe.cluster.devices_per_node": 8,
    "derived.steps": 10,
}
# Layers, dim, heads, head dim, vocabulary rows, query-key scaling, parameters in billions.
SHAPES = {
    "gpt3b6": (30, 3_072, 32, 96, 50_304, False, "3.559"),
    "gpt20b": (44, 6_144, 64, 96, 51_200, True, "20.26"),
    "gpt175b": (96, 12_288, 96, 128, 51_200, True, "174.6"),
}
# Tiles, nodes, tensor, pipeline, data, ZeRO, microbatch, microbatches, tokens a step.
LAYOUTS = {
    "gpt3b6": (8, 1, 1, 1, 8, 2, 8, 1, 131_072),
    "gpt20b": (32, 4, 8, 4, 1, 1, 1, 8, 16_384),
    "gpt175b": (128, 16, 8, 16, 1, 1, 3, 100, 614_400),
}


@pytest.mark.parametrize("name", HOMES)
def test_all_sizes_share_what_the_scripts_share(name: str) -> None:
    assert {path: value(name, path) for path in COMMON} == COMMON


@pytest.mark.parametrize("name", HOMES)
def test_the_shape_and_its_count_are_the_scripts(name: str) -> None:
    model = value(name, "recipe.model")
    attention = model["attention"]
    total = value(name, "derived.parameters.total")
    assert SHAPES[name] == (
        model["num_layers"],
        model["dim"],
        attention["num_heads"],
        attention["head_dim"],
        model["padded_vocab_size"],
        attention["layer_scaling"],
        f"{total / 1e9:.4g}",
    )
    assert attention["num_kv_heads"] == attention["num_heads"]
    assert model["mlp"]["ffn_dim"] == 4 * model["dim"]


@pytest.mark.parametrize("name", HOMES)
def test_the_count_is_megatrons_formula(name: str) -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), equation 2, with its smaller terms."""
    num_layers, dim, *_ = SHAPES[name]
    blocks = num_layers * (12 * dim**2 + 13 * dim)
    ends = (50_257 + 2_048) * dim + 2 * dim
    assert value(name, "derived.parameters.total") == blocks + ends
    rows = SHAPES[name][4] - 50_257
    assert value(name, "derived.parameters.padding") == rows * dim


@pytest.mark.parametrize("name", HOMES)
def test_the_layout_is_the_scripts(name: str) -> None:
    degrees = value(name, "recipe.parallelism")
    keys = ("tensor", "pipeline", "data", "zero", "microbatch_sequences")
    assert LAYOUTS[name] == (
        value(name, "derived.ranks"),
        value(name, "recipe.cluster.nodes"),
        *(degrees[key] for key in keys),
        value(name, "derived.microbatches_per_step"),
        value(name, "derived.tokens_per_step"),
    )


@pytest.mark.parametrize("name", HOMES)
def test_the_schedule_is_320_000_steps_and_a_hundredth_of_warm_up(name: str) -> None:
    step = value(name, "derived.tokens_per_step")
    assert value(name, "recipe.schedule.total_tokens") == 320_000 * step
    assert value(name, "recipe.schedule.warmup_tokens") == 3_200 * step
    assert value(name, "recipe.checkpoint.every_tokens") == 500 * step
    assert value(name, "recipe.evaluation.every_tokens") == 100 * step


def test_flops_of_a_sequence_are_the_sheets() -> None:
    """2.205e15 for 175B without recomputation, all of the attention matrix counted."""
    flops = value("gpt175b", "derived.flops_per_token.full") * 2_048
    assert f"{flops:.3e}" == "2.205e+15"


def test_weak_and_strong_scaling_are_two_overrides_away() -> None:
    weak = ("cluster=smng_p2", "parallelism.data=8", "budget.global_batch_tokens=4915200")
    assert shown("gpt175b", *weak)["derived"]["ranks"] == 1_024
    strong = ("cluster=smng_p2", "parallelism.data=8", "budget.global_batch_tokens=5160960")
    derived = shown("gpt175b", *strong)["derived"]
    assert (derived["samples_per_step"], derived["microbatches_per_step"]) == (2_520, 105)


@pytest.mark.parametrize(
    ("figure", "published"),
    [
        ("tflops_per_device", 57),
        ("peak_fraction", 0.10),
        ("weak_scaling_efficiency", 0.93),
        ("strong_scaling_efficiency", 0.82),
    ],
)
def test_only_the_largest_carries_the_figures_measured_on_it(
    figure: str, published: float
) -> None:
    assert value("gpt175b", f"recipe.published.{figure}.value") == published
    assert figure not in value("gpt3b6", "recipe.published")
    assert figure not in value("gpt20b", "recipe.published")


@pytest.mark.parametrize("name", HOMES)
def test_what_no_source_gives_is_marked_as_assumed(name: str) -> None:
    assumed = value(name, "recipe.assumed")
    assert list(assumed) == ["held_out_fraction"]
    fraction = value(name, "recipe.data.held_out_fraction")
    assert assumed["held_out_fraction"]["value"] == fraction
