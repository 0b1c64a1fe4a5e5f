"""The five Mula recipes, value by value against the paper and Optimus' code."""

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


DENSE = "mula1b"
EXPERTS = ("mula7b_a1b", "mula20b_a2b", "mula100b_a7b", "mula220b_a10b")
HOMES = dict.fromkeys((DENSE, *EXPERTS), "aurora")
STEP = 3_072 * 2_048

COMMON: dict[str, Any] = {
    "recipe.model.vocab_size": 50_304,
    "recipe.model.padded_vocab_size": 50_304,
    "recipe.model.tied_embeddings": False,
    "recipe.model.dropout": 0.0,
    "recipe.model.positions._target_": "components.model.positions.Rotary",
    "recipe.model.positions.base": 10_000.0,
    "recipe.model.attention.head_dim": 128,
    "recipe.model.attention.bias": False,
    "recipe.model.attention.dropout": 0.0,
    "recipe.model.mlp.activation": "silu",
    "recipe.model.mlp.gated": True,
    "recipe.model.norm.eps": 1e-5,
    "recipe.model.norm.bias": False,
    "recipe.model.initialization.std": 0.02,
    "recipe.model.initialization.residual": "plain",
    "recipe.model.initialization.padding_row": 1,
    "recipe.tokenizer.vocab_size": 50_280,
    "recipe.tokenizer.normalization": "nfc",
    "recipe.optimizer.lr": 4e-4,
    "recipe.optimizer.beta1": 0.9,
    "recipe.optimizer.beta2": 0.99,
    "recipe.optimizer.eps": 1e-8,
    "recipe.optimizer.weight_decay": 0.1,
    "recipe.optimizer.decay": "all",
    "recipe.optimizer.decay_order": "after",
    "recipe.optimizer.clip_norm": 1.0,
    "recipe.optimizer.clip_after_tokens": 2_500 * STEP,
    "recipe.schedule.total_tokens": 4_000_000_000_000,
    "recipe.schedule.warmup_tokens": 2_500 * STEP,
    "recipe.schedule.warmup_from": 0.1,
    "recipe.schedule.start": 1.0,
    "recipe.schedule.end": 0.1,
    "recipe.budget.sequence_length": 2_048,
    "recipe.budget.global_batch_tokens": STEP,
    "recipe.budget.ramp_up": "none",
    "recipe.budget.seed": 42,
    "recipe.precision.compute": "bfloat16",
    "recipe.precision.reduce": "bfloat16",
    "recipe.parallelism.tensor": 1,
    "recipe.parallelism.context": 1,
    "recipe.parallelism.zero": 1,
    "recipe.parallelism.microbatch_sequences": 1,
    "recipe.parallelism.schedule": "1f1b",
    "recipe.checkpoint.keep": 2,
    "recipe.cluster.scheduler": "pbs",
    "recipe.cluster.devices_per_node": 12,
    "recipe.cluster.nodes": 256,
    "derived.ranks": 3_072,
}
ROUTED: dict[str, Any] = {
    "recipe.model.mlp.top_k": 8,
    "recipe.model.mlp.renormalize": False,
    "recipe.model.mlp.routing": "learned",
    "recipe.model.mlp.auxiliary_loss": 0.01,
    "recipe.model.mlp.auxiliary_scope": "model",
    "recipe.model.mlp.z_loss": 0.0,
    "recipe.model.norm.center": False,
    "recipe.model.norm.weight": True,
    "recipe.model.attention.qk_norm.center": False,
    "recipe.model.attention.qk_norm.weight": True,
}
# Layers, dim, heads, feed-forward dim, experts; parameters, and billions that are active.
SHAPES = {
    "mula1b": (16, 2_048, 16, 8_192, None, 1_279_787_008, 1.280),
    "mula7b_a1b": (16, 2_048, 16, 1_024, 64, 6_919_161_856, 1.282),
    "mula20b_a2b": (32, 2_048, 16, 1_024, 96, 20_076_824_576, 2.360),
    "mula100b_a7b": (48, 3_072, 24, 1_536, 144, 99_987_557_376, 7.579),
    "mula220b_a10b": (64, 3_072, 24, 1_536, 240, 220_205_681_664, 10.021),
}
# Billions of parameters outside and inside the experts.
FAMILIES = {
    "mula7b_a1b": (0.477, 6.442),
    "mula20b_a2b": (0.749, 19.327),
    "mula100b_a7b": (2.143, 97.845),
    "mula220b_a10b": (2.773, 217.433),
}
# Data, expert, pipeline, microbatches, recomputation, steps between saves, tokens, steps.
LAYOUTS = {
    "mula1b": (3_072, 1, 1, 1, "none", 1_000, 4e12, 635_783),
    "mula7b_a1b": (3_072, 1, 1, 1, "none", 1_000, 4e12, 635_783),
    "mula20b_a2b": (256, 12, 1, 1, "none", 1_000, 1e11, 15_895),
    "mula100b_a7b": (64, 12, 4, 4, ["mlp"], 500, 1e11, 15_895),
    "mula220b_a10b": (32, 12, 8, 8, ["attention", "mlp", "norms"], 250, 1e11, 15_895),
}
# Billions of tokens of each subset, from the data set's card; its arXiv part was not read.
SUBSETS = {
    "dclm": 3_860,
    "starcoder": 101,
    "pes2o": 57.2,
    "open_web_math": 12.7,
    "algebraic_stack": 12.6,
    "wiki": 3.69,
}
# Table 3, times as fast: both, FSMOE in both passes and a step, EPSO in its part and a step.
FIGURES = (
    "step_speedup",
    "fsmoe_pass_speedup",
    "fsmoe_step_speedup",
    "epso_optimizer_speedup",
    "epso_step_speedup",
)
SPEEDUPS = {
    "mula7b_a1b": (1.71, 2.83, 1.71),
    "mula20b_a2b": (1.35, 1.33, 1.11, 1.36, 1.19),
    "mula100b_a7b": (1.41, 1.51, 1.31, 1.23, 1.06),
    "mula220b_a10b": (1.51, 1.66, 1.48, 1.07, 1.01),
}
# Table 2: per cent of each task, and their average.
_TASKS = (
    *("arc_easy", "arc_challenge", "hellaswag", "piqa", "boolq", "sciq", "winogrande"),
    *("openbookqa", "mmlu", "average"),
)
TASKS = tuple(f"score_{task}" for task in _TASKS)
SCORES = {
    "mula1b": (70.2, 39.6, 67.7, 76.5, 66.2, 93.7, 62.7, 39.8, 25.9, 60.3),
    "mula7b_a1b": (75.4, 45.5, 76.3, 79.1, 73.1, 93.4, 67.2, 45.6, 47.3, 67.0),
}


@pytest.mark.parametrize("name", HOMES)
def test_all_sizes_share_the_common_recipe(name: str) -> None:
    assert {path: value(name, path) for path in COMMON} == COMMON


@pytest.mark.parametrize("name", EXPERTS)
def test_the_router_is_the_codes(name: str) -> None:
    assert {path: value(name, path) for path in ROUTED} == ROUTED


def test_the_dense_model_has_norms_without_parameters() -> None:
    norm = value(DENSE, "recipe.model.norm")
    assert (norm["center"], norm["weight"], norm["bias"]) == (True, False, False)
    assert value(DENSE, "recipe.model.attention.qk_norm") is None
    assert value(DENSE, "derived.parameters.expert") == 0


@pytest.mark.parametrize("name", HOMES)
def test_the_shape_and_its_counts_are_those_of_table_1(name: str) -> None:
    model = value(name, "recipe.model")
    counts = value(name, "derived.parameters")
    assert SHAPES[name] == (
        model["num_layers"],
        model["dim"],
        model["attention"]["num_heads"],
        model["mlp"]["ffn_dim"],
        model["mlp"].get("num_experts"),
        counts["total"],
        round(counts["active"] / 1e9, 3),
    )
    assert model["attention"]["num_kv_heads"] == model["attention"]["num_heads"]
    assert counts["padding"] == 0


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_parameters_are_those_that_only_data_ranks_share(name: str) -> None:
    counts = value(name, "derived.parameters")
    others = counts["total"] - counts["expert"]
    assert FAMILIES[name] == (round(others / 1e9, 3), round(counts["expert"] / 1e9, 3))


@pytest.mark.parametrize("name", HOMES)
def test_the_layout_is_the_launch_commands(name: str) -> None:
    degrees = value(name, "recipe.parallelism")
    assert LAYOUTS[name] == (
        degrees["data"],
        degrees["expert"],
        degrees["pipeline"],
        value(name, "derived.microbatches_per_step"),
        degrees["recompute"],
        value(name, "recipe.checkpoint.every_tokens") / STEP,
        value(name, "recipe.budget.total_tokens"),
        value(name, "derived.steps"),
    )


@pytest.mark.parametrize("name", HOMES)
def test_the_end_of_document_is_the_last_piece_and_padding_is_id_1(name: str) -> None:
    tokenizer = value(name, "recipe.tokenizer")
    assert tokenizer["last_pieces"][-1] == tokenizer["eod"] == "<|endoftext|>"
    assert tokenizer["first_pieces"].index("<|padding|>") == 1


def test_the_mix_has_the_natural_proportions_of_its_subsets() -> None:
    shares = value(DENSE, "recipe.data.shares")
    total = sum(SUBSETS.values())
    natural = {name: tokens / total for name, tokens in SUBSETS.items()}
    assert shares == pytest.approx(natural, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "teraflops"), [("mula7b_a1b", 16.11), ("mula220b_a10b", 130.5)]
)
def test_flops_of_a_sequence_are_optimus_formula(name: str, teraflops: float) -> None:
    """Optimus counts the large products alone: no routers, no norms."""
    num_layers, dim, _, _, experts, *_ = SHAPES[name]
    assert experts is not None
    norms = 4 * num_layers * dim + dim
    small = 6 * (num_layers * dim * experts + norms)
    flops = value(name, "derived.flops_per_token.full") - small
    assert f"{flops * 2_048 / 1e12:.4g}" == f"{teraflops:.4g}"


@pytest.mark.parametrize("name", HOMES)
def test_each_model_carries_its_own_rows_of_tables_2_and_3(name: str) -> None:
    published = value(name, "recipe.published")
    for figures, rows, table in ((FIGURES, SPEEDUPS, 3), (TASKS, SCORES, 2)):
        found = [published[figure] for figure in figures if figure in published]
        assert tuple(figure["value"] for figure in found) == rows.get(name, ())
        assert {figure["source"] for figure in found} <= {f"paper, table {table}"}


@pytest.mark.parametrize("name", SCORES)
def test_the_average_is_that_of_the_nine_tasks(name: str) -> None:
    *tasks, average = SCORES[name]
    assert round(sum(tasks) / len(tasks), 1) == average


@pytest.mark.parametrize("name", HOMES)
def test_weights_alone_are_kept_of_every_checkpoint(name: str) -> None:
    saved = value(name, "recipe.checkpoint")
    assert saved["weights_every_tokens"] == saved["every_tokens"]


@pytest.mark.parametrize("name", HOMES)
def test_numbers_that_are_none_end_a_run_and_no_spike_is_skipped(name: str) -> None:
    guard = value(name, "recipe.guard")
    assert guard["non_finite"]["action"] == "relaunch"
    assert (guard["loss_spike"], guard["gradient_norm_spike"]) == ("none", "none")


@pytest.mark.parametrize("name", HOMES)
def test_what_no_source_gives_is_marked_as_assumed(name: str) -> None:
    assumed = value(name, "recipe.assumed")
    assert sorted(assumed) == ["arxiv_subset", "evaluation_every_tokens", "held_out_fraction"]
    assert "arxiv" not in value(name, "recipe.data.shares")
    every = value(name, "recipe.evaluation.every_tokens")
    assert assumed["evaluation_every_tokens"]["value"] == every
    assert every == value(name, "recipe.checkpoint.every_tokens")


@pytest.mark.parametrize("name", EXPERTS)
def test_the_miniature_still_routes(name: str) -> None:
    mlp = shown(name, "scale=mini")["recipe"]["model"]["mlp"]
    assert 1 < mlp["top_k"] < mlp["num_experts"]
