"""``action=show output=json`` at full scale, value by value against the published script."""

import json
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Launch script, Hugging Face config and tokenizer_config of the published model.
FACTS: dict[str, Any] = {
    "recipe.model.num_layers": 32,
    "recipe.model.dim": 4096,
    "recipe.model.mlp.ffn_dim": 13440,
    "recipe.model.mlp.gated": True,
    "recipe.model.mlp.activation": "silu",
    "recipe.model.mlp.bias": False,
    "recipe.model.attention.num_heads": 32,
    "recipe.model.attention.num_kv_heads": 2,
    "recipe.model.attention.head_dim": 128,
    "recipe.model.attention.bias": False,
    "recipe.model.norm.eps": 1e-5,
    "recipe.model.norm.center": False,
    "recipe.model.norm.bias": False,
    "recipe.model.positions.base": 10_000.0,
    "recipe.model.tied_embeddings": True,
    "recipe.model.vocab_size": 250_680,
    "recipe.model.padded_vocab_size": 250_880,
    "recipe.model.initialization.std": 0.0158,
    "recipe.model.initialization.residual": "scaled",
    "recipe.tokenizer.vocab_size": 250_680,
    "recipe.tokenizer.character_coverage": 0.9999,
    "recipe.tokenizer.byte_fallback": True,
    "recipe.tokenizer.normalization_rule_name": "nfkc",
    "recipe.tokenizer.remove_extra_whitespaces": False,
    "recipe.tokenizer.required_chars": "",
    "recipe.tokenizer.splitting.split_digits": True,
    "recipe.tokenizer.splitting.split_by_number": True,
    "recipe.tokenizer.splitting.split_by_whitespace": True,
    "recipe.tokenizer.splitting.allow_whitespace_only_pieces": True,
    "recipe.tokenizer.sentences.max_sentence_length": 4096,
    "recipe.tokenizer.sentences.input_sentence_size": 0,
    "recipe.tokenizer.sentences.shuffle_input_sentence": True,
    "recipe.tokenizer.sentences.train_extremely_large_corpus": True,
    "recipe.tokenizer.special_pieces.bos": "<s>",
    "recipe.tokenizer.special_pieces.eos": "</s>",
    "recipe.tokenizer.special_pieces.pad": "<pad>",
    "recipe.tokenizer.special_pieces.eod": "<eod>",
    "recipe.tokenizer.special_pieces.num_placeholders": 256,
    "recipe.optimizer.lr": 3.0e-4,
    "recipe.optimizer.beta1": 0.9,
    "recipe.optimizer.beta2": 0.95,
    "recipe.optimizer.eps": 1e-8,
    "recipe.optimizer.weight_decay": 0.1,
    "recipe.optimizer.decay": "matrices",
    "recipe.optimizer.clip_norm": 1.0,
    "recipe.schedule.phases.first.total_tokens": 3_000_000_000_000,
    "recipe.schedule.phases.first.end": 0.1,
    "recipe.schedule.phases.second.total_tokens": 3_000_000_000_000,
    "recipe.schedule.phases.second.warmup_tokens": 0,
    "recipe.schedule.phases.second.start": 0.1,
    "recipe.schedule.phases.second.end": 0.05,
    "recipe.budget.total_tokens": 6_000_000_000_000,
    "recipe.budget.global_batch_tokens": 1024 * 4096,
    "recipe.budget.sequence_length": 4096,
    "recipe.budget.seed": 42,
    "recipe.precision.compute": "bfloat16",
    "recipe.precision.accumulate": "float32",
    "recipe.precision.reduce": "float32",
    "recipe.parallelism.tensor": 2,
    "recipe.parallelism.pipeline": 2,
    "recipe.parallelism.data": 128,
    "recipe.parallelism.zero": 1,
    "recipe.parallelism.sequence_parallel": True,
    "recipe.parallelism.microbatch_sequences": 1,
    "recipe.parallelism.schedule": "1f1b",
    "recipe.checkpoint.every_tokens": 225 * 4_194_304,
    "recipe.evaluation.every_tokens": 450 * 4_194_304,
    "recipe.cluster.name": "juwels",
    "recipe.cluster.nodes": 128,
    "recipe.cluster.devices_per_node": 4,
    "derived.parameters.total": 7_452_725_248,
    "derived.parameters.active": 7_452_725_248,
    "derived.parameters.embedding": 1_026_785_280,
    "derived.parameters.expert": 0,
    "derived.parameters.padding": 200 * 4096,
    "derived.tokens_per_step": 4_194_304,
    "derived.steps": 1_430_512,
    "derived.ranks": 512,
    "derived.microbatches_per_step": 8,
}
# GF a token in the sheet's own rounding, full and causal attention.
FLOPS_PER_TOKEN = {"full": 51.16, "causal": 47.94}
# Accuracy over 21 languages, of the card of v0.6.
EU21 = {"arc": 0.558, "hellaswag": 0.619, "truthfulqa": 0.449, "mmlu": 0.453}
LANGUAGES = sorted(file.stem for file in (ROOT / "corpora" / "eu24").glob("*.txt"))


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    words = ("recipe=teuken7b", "cluster=juwels", "scale=full", "action=show", "output=json")
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    tree: dict[str, Any] = json.loads(done.stdout)
    return tree


@pytest.mark.parametrize("path", FACTS)
def test_the_recipe_says_what_was_published(shown: dict[str, Any], path: str) -> None:
    assert reduce(lambda tree, step: tree[step], path.split("."), shown) == FACTS[path]


def test_flops_a_token_are_the_sheets_in_both_conventions(shown: dict[str, Any]) -> None:
    flops = shown["derived"]["flops_per_token"]
    assert {name: round(value / 1e9, 2) for name, value in flops.items()} == FLOPS_PER_TOKEN


def test_the_mixture_has_the_24_languages_and_sixty_percent_that_is_not_english(
    shown: dict[str, Any],
) -> None:
    shares = shown["recipe"]["data"]["shares"]
    assert sorted(shares) == LANGUAGES
    assert 1 - shares["en"] == pytest.approx(0.6)
    assert sum(shares.values()) == pytest.approx(1)


def test_what_no_source_gives_is_marked_as_assumed(shown: dict[str, Any]) -> None:
    recipe = shown["recipe"]
    assumed = recipe["assumed"]
    assert assumed["language_shares"]["value"] == recipe["data"]["shares"]
    first = recipe["schedule"]["phases"]["first"]
    assert assumed["warmup_tokens"]["value"] == first["warmup_tokens"]
    assert not set(assumed) & set(recipe["published"])
    # FineWeb-Edu joins the second phase; the recipe says that no share changes with it.
    assert "FineWeb-Edu" in assumed["second_phase_shares"]["reason"]
    assert recipe["data"]["phases"] == {}


def test_scores_and_bytes_are_those_of_card_and_index(shown: dict[str, Any]) -> None:
    published = shown["recipe"]["published"]
    scores = [published[f"score_{task}"]["value"] for task in EU21]
    assert scores == pytest.approx([100 * score for score in EU21.values()])
    assert published["score_average"]["value"] == round(sum(scores) / len(scores)) == 52
    total = shown["derived"]["parameters"]["total"]
    assert published["weights_bytes"]["value"] == 2 * total == 14_905_450_496
