"""Nothing is made larger: what is small already, a user's own recipe, trains as it is."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import read_point
from command.compose import compose_recipe
from components.config.schema.recipe import Recipe

OWN: dict[str, Any] = yaml.safe_load("""
defaults:
  - override /model: playbook1b
  - override /tokenizer: bpe_gpt2
  - override /schedule: cosine
name: own
why: A small model of my own text.
home: juwels
model:
  dim: 128
  num_layers: 2
  vocab_size: 1_000
  padded_vocab_size: 1_024
  attention: {num_heads: 2, num_kv_heads: 1, head_dim: 64}
  mlp: {ffn_dim: 352}
tokenizer: {vocab_size: 1_000}
data: {shares: {mine: 1.0}, sources: {mine: {files: [text.txt]}}}
budget:
  total_tokens: 204_800
  global_batch_tokens: 1_024
  sequence_length: 128
  seed: 1
  ramp_up: {start_tokens: 256, increment_tokens: 256, over_tokens: 8_192}
optimizer: {lr: 3.333e-4, clip_after_tokens: 1_000}
schedule: {total_tokens: 204_800, warmup_tokens: 20_000, warmup_from: 0.0, start: 1.0, end: 0.1}
parallelism: {data: 1, microbatch_sequences: 2}
checkpoint: {every_tokens: 4_096}
evaluation: {every_tokens: 8_192}
""")
ENOUGH = "All work and no play makes a dull text. " * 20_000
Compose = Callable[..., Recipe]


@pytest.fixture
def compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """Compose the user's own recipe with some of its keys changed."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(ENOUGH)

    def call(changed: dict[str, Any] | None = None, *words: str) -> Recipe:
        tree = deepcopy(OWN)
        for path, value in (changed or {}).items():
            *parents, last = path.split(".")
            here = tree
            for step in parents:
                here = here[step]
            here[last] = value
        Path("own.yaml").write_text(yaml.safe_dump(tree))
        return compose_recipe(read_point(["recipe=./own.yaml", *words]))

    return call


def without_scale(recipe: Recipe) -> dict[str, Any]:
    tree = recipe.model_dump(mode="json")
    del tree["scale"], tree["precision"]["compute"]
    return tree


def test_what_is_small_trains_as_it_is(compose: Compose) -> None:
    mini, full = compose(), compose({}, "scale=full")
    assert mini.scale.name == "mini"
    assert without_scale(mini) == without_scale(full)


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
        {
            "budget.sequence_length": 1_024,
            "budget.global_batch_tokens": 4_096,
            "budget.ramp_up": "none",
        },
        {"budget.total_tokens": 10**9, "budget.global_batch_tokens": 65_536},
        {"schedule.warmup_tokens": 10**6, "schedule.total_tokens": 10**9},
        {"data.tokenizer_sample_bytes": 1_000, "model.padded_vocab_size": 50_304},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_number_of_a_recipe_grows(
    compose: Compose, changed: dict[str, Any], scale: str
) -> None:
    small, full = (compose(changed, f"scale={one}") for one in (scale, "full"))
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
    microbatches = [
        one.parallelism.microbatch_sequences * one.budget.sequence_length
        for one in (small, full)
    ]
    assert microbatches[0] <= microbatches[1]
    assert small.tokenizer["vocab_size"] <= full.tokenizer["vocab_size"]
    assert small.data.held_out_fraction == full.data.held_out_fraction
    samples = [one.data.tokenizer_sample_bytes for one in (small, full)]
    assert samples[0] == samples[1] or "all" in samples or samples[0] < samples[1]
    if changed.get("budget.ramp_up") != "none":
        starts = [one.budget.ramp_up.start_tokens for one in (small, full)]  # type: ignore[union-attr]
        assert starts[0] <= starts[1]


def test_experts_stay_experts(compose: Compose) -> None:
    changed = {"defaults": [{"override /model": "mula7b_a1b"}, *OWN["defaults"][1:]]}
    mlp = {"ffn_dim": 64, "num_experts": 4, "top_k": 3}
    small = compose({**changed, "model.mlp": mlp}).model["mlp"]
    assert (small["num_experts"], small["top_k"], small["ffn_dim"]) == (4, 3, 64)


def test_a_tokenizer_that_is_there_keeps_its_vocabulary(compose: Compose) -> None:
    large = {"model.vocab_size": 50_257, "model.padded_vocab_size": 50_304}
    assert compose(large).shape.vocab_size < 5_000
    for brought in (
        {"data.tokenizer_folder": "tokenizer"},
        {"data.sources.mine": {"tokens": ["text_document"]}},
    ):
        assert compose(large | brought).shape.padded_vocab_size == 50_304
        shape = compose(large | brought, "tokenizer.vocab_size=900").shape
        assert (shape.vocab_size, shape.padded_vocab_size) == (900, 932)


def test_learned_positions_of_a_small_recipe_stay(compose: Compose) -> None:
    learned = "components.model.positions.Learned"
    positions = {"_target_": learned, "_partial_": True, "num_positions": 1_024}
    model = {"defaults": [{"override /model": "gpt3b6"}, *OWN["defaults"][1:]]}
    changed = {**model, "model.positions": positions, "model.mlp": {"ffn_dim": 512}}
    assert compose(changed).shape.positions.num_positions == 1_024
    named = compose(changed, "budget.sequence_length=64", "budget.global_batch_tokens=1_024")
    assert named.shape.positions.num_positions == 64


def test_a_recipe_whose_home_is_here_trains_at_its_own_size(compose: Compose) -> None:
    wide = {"model.dim": 512, "model.mlp.ffn_dim": 1_024}
    assert compose(wide).scale.name == "mini"
    here = compose({**wide, "home": "local"})
    assert (here.scale.name, here.shape.dim, here.cluster.ranks) == ("full", 512, 1)
    assert compose({**wide, "home": "local"}, "scale=mini").shape.dim == 256
    elsewhere = ("cluster=hopper", "cluster.devices_per_node=1")
    assert compose({**wide, "home": "local"}, *elsewhere).scale.name == "full"
