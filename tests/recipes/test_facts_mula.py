"""The five Mula recipes: what follows from the paper and Optimus' code."""

import pytest

from tests.recipes.compositions import shown, value

DENSE = "mula1b"
EXPERTS = ("mula7b_a1b", "mula20b_a2b", "mula100b_a7b", "mula220b_a10b")
HOMES = dict.fromkeys((DENSE, *EXPERTS), "aurora")

# Parameters, billions that are active, steps.
COUNTS = {
    "mula1b": (1_279_787_008, 1.280, 635_783),
    "mula7b_a1b": (6_919_161_856, 1.282, 635_783),
    "mula20b_a2b": (20_076_824_576, 2.360, 15_895),
    "mula100b_a7b": (99_987_557_376, 7.579, 15_895),
    "mula220b_a10b": (220_205_681_664, 10.021, 15_895),
}
# Billions of parameters outside and inside the experts.
FAMILIES = {
    "mula7b_a1b": (0.477, 6.442),
    "mula20b_a2b": (0.749, 19.327),
    "mula100b_a7b": (2.143, 97.845),
    "mula220b_a10b": (2.773, 217.433),
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
def test_parameters_and_steps_are_those_of_table_1_and_of_the_tokens(name: str) -> None:
    derived = shown(name, f"cluster={HOMES[name]}")["derived"]
    counts = derived["parameters"]
    active = round(counts["active"] / 1e9, 3)
    assert COUNTS[name] == (counts["total"], active, derived["steps"])
    assert counts["padding"] == 0


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_parameters_are_those_that_only_data_ranks_share(name: str) -> None:
    counts = value(name, "derived.parameters")
    others = counts["total"] - counts["expert"]
    assert FAMILIES[name] == (round(others / 1e9, 3), round(counts["expert"] / 1e9, 3))


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
    model = value(name, "recipe.model")
    num_layers, dim, experts = model["num_layers"], model["dim"], model["mlp"]["num_experts"]
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
