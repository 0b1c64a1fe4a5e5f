"""Nothing is made larger, and a user's own text is all that a miniature of it reads."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from components.config.recipe import Recipe
from tests.components.config.helpers import teuken
from tests.components.config.own_recipe import compose_own


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("All work and no play makes a dull text. " * 20_000)


def without_scale(recipe: Recipe) -> dict[str, Any]:
    tree = recipe.model_dump(mode="json")
    del tree["scale"], tree["precision"]["compute"]
    return tree


def test_a_small_recipe_is_its_own_miniature() -> None:
    mini, full = compose_own({}), compose_own({}, "scale=full")
    assert mini.scale.name == "mini"
    assert without_scale(mini) == without_scale(full)


NO_RAMP = {"budget.ramp_up": "none"}


@pytest.mark.quick("model.dim0-mini", "budget.sequence_length-parity", "model.vocab_size-mini")
@pytest.mark.parametrize("scale", ["mini", "parity"])
@pytest.mark.parametrize(
    "changed",
    [
        {"model.dim": 1_024, "model.attention.head_dim": 512},
        {"model.dim": 1_024, "model.attention.num_heads": 64, "model.attention.head_dim": 16},
        {"model.num_layers": 48},
        {"model.mlp.ffn_dim": 65_536},
        {"model.vocab_size": 50_257, "model.padded_vocab_size": 50_304},
        {"model.padded_vocab_size": 50_304},
        {"budget.sequence_length": 1_024, "budget.global_batch_tokens": 4_096, **NO_RAMP},
        {"budget.total_tokens": 10**9, "budget.global_batch_tokens": 65_536},
        {"schedule.warmup_tokens": 10**6, "schedule.total_tokens": 10**9},
        {"data.tokenizer_sample_bytes": 1_000, "model.padded_vocab_size": 50_304},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_number_of_a_recipe_grows(changed: dict[str, Any], scale: str) -> None:
    small, full = (compose_own(changed, f"scale={one}") for one in (scale, "full"))
    for section, keys in {
        "model": ("dim", "num_layers", "vocab_size", "padded_vocab_size"),
        "budget": ("total_tokens", "global_batch_tokens", "sequence_length"),
    }.items():
        here, there = (one.model_dump(mode="json")[section] for one in (small, full))
        assert all(here[key] <= there[key] for key in keys)
    for part in ("attention", "mlp"):
        here, there = small.model[part], full.model[part]
        numbers = [key for key, value in there.items() if type(value) is int]
        assert all(here[key] <= there[key] for key in numbers)
    fewer, more = (
        one.parallelism.microbatch_sequences * one.budget.sequence_length
        for one in (small, full)
    )
    assert fewer <= more
    assert small.tokenizer["vocab_size"] <= full.tokenizer["vocab_size"]
    assert small.data.held_out_fraction == full.data.held_out_fraction
    sampled = [one.data.tokenizer_sample_bytes for one in (small, full)]
    samples = [float("inf") if one == "all" else one for one in sampled]
    assert samples[0] <= samples[1]
    if changed.get("budget.ramp_up") != "none":
        ramps = [one.budget.ramp_up for one in (small, full)]
        starts = [ramp.start_tokens for ramp in ramps]  # type: ignore[union-attr]  # both ramp
        assert starts[0] <= starts[1]


def test_a_part_of_a_schedule_too_short_for_a_miniature_keeps_a_token() -> None:
    short = {"schedule": "wsd", "schedule.total_tokens": 10**9, "schedule.decay_tokens": 10}
    short |= {"schedule.warmup_tokens": 10, "budget.total_tokens": 10**9}
    mini = compose_own({**short, "budget.ramp_up": "none"}, "scale=mini").schedule
    lengths = [mini[f"{part}_tokens"] for part in ("total", "decay", "warmup")]
    assert lengths == [614_400, 1, 0]


EXPERTS: dict[str, Any] = {
    "model": "mula7b_a1b",
    "model.mlp": {"ffn_dim": 64, "num_experts": 4, "top_k": 3},
}


def test_experts_stay_experts() -> None:
    small = compose_own(EXPERTS).model["mlp"]
    assert (small["num_experts"], small["top_k"], small["ffn_dim"]) == (4, 3, 64)


def test_the_capacity_factor_stays_with_expert_ranks() -> None:
    exchange = {"expert": 2, "expert_dispatch": "all_to_all", "expert_capacity_factor": 1.5}
    experts = {f"parallelism.{key}": value for key, value in exchange.items()}
    experts |= {**EXPERTS, "budget.ramp_up": "none"}
    for ranks, expected in {1: (1, None), 4: (2, 1.5)}.items():
        small = compose_own(experts, "scale=mini", f"cluster.ranks={ranks}").parallelism
        assert (small.expert, small.expert_capacity_factor) == expected


def test_an_existing_tokenizer_keeps_its_vocabulary() -> None:
    large = {"model.vocab_size": 50_257, "model.padded_vocab_size": 50_304}
    assert compose_own(large).decoder_spec.vocab_size < 5_000
    tokens = {"tokens": ["text_document"]}
    for brought in ({"data.tokenizer_folder": "tokenizer"}, {"data.sources.mine": tokens}):
        assert compose_own(large | brought).decoder_spec.padded_vocab_size == 50_304
        shape = compose_own(large | brought, "tokenizer.vocab_size=900").decoder_spec
        assert (shape.vocab_size, shape.padded_vocab_size) == (900, 932)


def test_learned_positions_of_a_small_recipe_stay() -> None:
    learned = "components.model.positions.Learned"
    positions = {"_target_": learned, "_partial_": True, "num_positions": 1_024}
    changed = {"model": "gpt3b6", "model.positions": positions}
    assert compose_own(changed).decoder_spec.positions.num_positions == 1_024
    words = ("budget.sequence_length=64", "budget.global_batch_tokens=1_024")
    named = compose_own(changed, *words)
    assert named.decoder_spec.positions.num_positions == 64


def test_a_miniature_keeps_at_least_one_layer_without_rotation() -> None:
    some = {"_target_": "components.model.positions.InterleavedRotary", "_partial_": True}
    for skip_every, layers, expected in ((6, 48, 4), (3, 48, 3), (6, 2, 2)):
        positions = some | {"base": 10_000.0, "skip_every": skip_every}
        changed = {"model.num_layers": layers, "model.positions": positions}
        shape = compose_own(changed, "scale=mini").decoder_spec
        assert shape.positions.skip_every == expected
        assert shape.positions.turned_layers(shape.num_layers) < shape.num_layers


def test_windows_keep_their_share_of_the_sequence() -> None:
    for pattern, layers, sequence, expected in (
        ([512, 512, 512, "full"], 32, 1_024, (128, 128, 128, "full")),
        ([100, 1, 512, 512, 512, "full"], 32, 1_024, (128, 128, 128, "full")),
        ([2_048], 32, 1_024, (512,)),  # hides nothing before, and nothing after
        ([64, "full"], 2, 256, (64, "full")),
    ):
        changed = {"model.num_layers": layers, "model.attention.windows": pattern}
        changed |= {"budget.sequence_length": sequence}
        small = compose_own(changed, "scale=mini")
        assert small.budget.sequence_length == 256
        assert small.decoder_spec.attention.windows == expected
    named = compose_own(changed, "scale=mini", "model.attention.windows=[full,7]")
    assert named.decoder_spec.attention.windows == ("full", 7)


def test_the_goldfish_window_fits_a_miniatures_samples() -> None:
    for window, expected in ((50, 50), (2_000, 32)):
        goldfish = {"data.goldfish": {"one_in": 50, "window_tokens": window}}
        long = goldfish | {"budget.sequence_length": 2_048}
        recipe = compose_own(long, "scale=mini", "budget.sequence_length=64")
        assert not isinstance(recipe.data.goldfish, str)
        assert recipe.data.goldfish.window_tokens == expected


@pytest.mark.parametrize("scale", ["mini", "parity"])
def test_sums_become_float32_with_float32_products(scale):
    changed = {"precision": {"accumulate": "float16", "reduce": "float16"}}
    full = compose_own(changed, "scale=full", "precision=fp16").precision
    assert (full.compute, full.accumulate, full.reduce) == ("float16",) * 3
    small = compose_own(changed, f"scale={scale}", "precision=fp16").precision
    assert (small.compute, small.accumulate, small.reduce) == ("auto", "float32", "float32")


def test_a_recipe_of_this_machine_trains_at_full_size() -> None:
    wide = {"model.dim": 512, "model.mlp.ffn_dim": 1_024}
    assert compose_own(wide).scale.name == "mini"
    local = {**wide, "reference_cluster": "local"}
    here = compose_own(local)
    assert (here.scale.name, here.decoder_spec.dim, here.cluster.ranks) == ("full", 512, 1)
    assert compose_own(local, "scale=mini").decoder_spec.dim == 256
    elsewhere = ("cluster=hopper", "cluster.devices_per_node=1")
    assert compose_own(local, *elsewhere).scale.name == "full"


A_TXT: dict[str, Any] = {"files": ["text.txt"]}


def test_a_recipe_with_its_own_text_reads_no_filler() -> None:
    recipe = compose_own({"data.sources.mine": {**A_TXT, "most_epochs": 9}})
    assert dict(recipe.data.shares) == {"mine": 1.0}
    assert recipe.data.sources["mine"].most_epochs == 9
    assert recipe.data.held_out_fraction == 0.005  # the recipe's
    assert recipe.scale.shrink.filler == {}  # type: ignore[union-attr]  # not "none" here


def test_shares_of_the_user_stay_exact() -> None:
    shares = {"a": 0.1, "b": 0.2, "c": 0.7}
    sources = {name: deepcopy(A_TXT) for name in shares}
    recipe = compose_own({"data.shares": shares, "data.sources": sources})
    assert dict(recipe.data.shares) == shares


def test_filler_stays_with_a_published_corpus() -> None:
    data = teuken("data.sources.de.files=[text.txt]").data
    assert (data.shares["python_source"], data.held_out_fraction) == (0.6, 0.05)
