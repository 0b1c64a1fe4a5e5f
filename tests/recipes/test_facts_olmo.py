"""The larger OLMo runs, value by value against their scripts: as in `test_facts_open_runs`."""

import pytest

from components.config.phases import recipes_of
from tests.recipes.test_facts_open_runs import recipe


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("olmo2_13b", 13_716_198_400),
        ("olmo2_32b", 32_234_279_936),
        ("olmo3_32b", 32_234_279_936),
        ("olmoe_1b7b", 6_919_161_856),
    ],
)
def test_the_larger_olmos_have_the_counted_parameters(name: str, counted: int) -> None:
    assert recipe(name).derived.parameters.total == counted


def test_the_32b_olmo_3_has_the_stages_of_its_scripts() -> None:
    run = recipe("olmo3_32b")
    first, midtrain, long = recipes_of(run).values()
    assert midtrain.span.first_token == 656_000 * 8_388_608 == 5_502_926_848_000
    assert long.span.first_token - midtrain.span.first_token == 23_842 * 4_194_304
    assert [stage.from_tokens for stage in run.data.phases.values()] == [
        stage.span.first_token for stage in (midtrain, long)
    ]
    batches = [stage.budget.global_batch_tokens for stage in (first, midtrain, long)]
    assert batches == [8_388_608, 4_194_304, 8_388_608]
    lengths = [stage.budget.sequence_length for stage in (first, midtrain, long)]
    assert lengths == [8_192, 8_192, 65_536]
    layouts = [(one.parallelism.data, one.parallelism.context) for one in (first, long)]
    assert layouts == [(1_024, 1), (128, 8)]
    shards = [stage.parallelism.data_shard for stage in (first, midtrain, long)]
    assert shards == [64, 64, 8]
    assert long.data.document_mask
    assert long.data.packing == "best_fit"
    scaling = long.model["positions"]["scaling"]
    keys = ("factor", "beta_fast", "beta_slow", "original_tokens")
    assert [scaling[key] for key in keys] == [8, 32, 1, 8_192]
    assert run.model["attention"]["windows"] == (4_096, 4_096, 4_096, "full")
    assert run.budget.seed == recipe("olmo2_32b").budget.seed == 34_521


def test_olmoe_has_the_losses_and_the_mixture_of_its_own_run() -> None:
    run = recipe("olmoe_1b7b")
    experts = run.model["mlp"]
    assert (experts["num_experts"], experts["top_k"], experts["ffn_dim"]) == (64, 8, 1_024)
    assert run.derived.parameters.active == 1_282_017_280
    # megablocks: both losses over layers and top_k, the first layer by layer
    assert experts["auxiliary_loss"] == pytest.approx(0.01 / (16 * 8))
    assert experts["z_loss"] == pytest.approx(0.001 / (16 * 8))
    assert experts["auxiliary_scope"] == "layer"
    assert not experts["renormalize"]
    assert run.model["initialization"]["cutoff"] == 3.0
    assert run.model["initialization"]["padding_row"] is None
    assert run.data.shares["arxiv"] == pytest.approx(21.1 / 4_068.29, abs=1e-6)
    assert run.data.shares["dclm"] == pytest.approx(3_860 / 4_068.29, abs=1e-6)
    assert "arxiv" not in recipe("mula7b_a1b").data.shares
    assert run.checkpoint.every_tokens == run.evaluation.every_tokens == 5_000 * 4_194_304
    assert run.budget.seed == 6_198


@pytest.mark.parametrize(
    ("name", "layout"),
    [  # a copy's ranks, sequences a microbatch, what is recomputed, of which layers
        ("olmo2_13b", (8, 2, "full", 2)),
        ("olmo2_32b", (64, 2, ("mlp",), 1)),
        ("olmo3_32b", (64, 1, ("mlp",), 1)),
        ("olmoe_1b7b", (64, 4, "none", 1)),
    ],
)
def test_the_larger_olmos_have_the_layouts_of_their_scripts(
    name: str, layout: tuple[object, ...]
) -> None:
    degrees = recipe(name).parallelism
    assert degrees.zero == 3
    shown = (degrees.microbatch_sequences, degrees.recompute, degrees.recompute_every)
    assert (degrees.data_shard, *shown) == layout
    assert recipe(name).derived.microbatches_per_step == 1
