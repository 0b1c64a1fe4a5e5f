"""A folder is written completely or not at all; its card describes the training."""

import json
import re
import shutil
from typing import Any

import pytest
from torch import nn

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.schema.sections import AssumedValue
from components.convert.folder import write_card
from components.errors import RecipeError
from components.run.records import HeldOutRecord, Results
from tests.components.convert.conftest import CONTEXT_TOKENS, Export, bloom, llama, random_model


def test_an_exported_folder_has_all_files_and_the_configuration(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    assert [file.name for file in folder.parent.iterdir()] == [folder.name]
    files = ("config.json", "generation_config.json", "model.safetensors", "README.md")
    tokenizer = ("tokenizer.json", "tokenizer_config.json")
    assert {file.name for file in folder.iterdir()} == {*files, *tokenizer}
    config = json.loads((folder / "config.json").read_text())
    expected: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    expected |= {"torch_dtype": "float32", "max_position_embeddings": CONTEXT_TOKENS}
    expected |= {"rope_theta": 500.0, "tie_word_embeddings": True}
    assert {key: config[key] for key in expected} == expected


def test_tied_rows_are_stored_once(export: Export) -> None:
    folder = export(random_model(bloom()), bloom(), max_shard_bytes=10_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert "lm_head.weight" not in index["weight_map"]
    assert "transformer.word_embeddings.weight" in index["weight_map"]


def test_an_existing_folder_is_kept_and_a_failed_export_leaves_none(export, tmp_path):
    model = random_model(llama())
    folder = export(model, llama())
    with pytest.raises(RecipeError, match=r"exported exists\n  set another folder"):
        export(model, llama())
    assert (folder / "model.safetensors").is_file()
    shutil.rmtree(folder)
    with pytest.raises(RecipeError, match="neither"):
        export(model, llama(), tokenizer=tmp_path)
    model.extra = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match=r"no place for \['extra\.bias', 'extra\.weight'"):
        export(model, llama())
    assert not folder.exists()


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b"]))


def results(tokens: int) -> Results:
    losses: dict[str, Any] = {"final": 3.5, "final_unweighted": 4.5}
    losses |= {"unigram": 6.0, "unigram_unweighted": 7.0}
    counts: dict[str, Any] = {"steps": 7, "tokens": tokens, "tokens_per_second": 1.0}
    held_out = HeldOutRecord(step=5, **losses)
    return Results(status="finished", device="cpu", loss=3.25, held_out=held_out, **counts)


def test_the_card_lists_training_and_assumptions(recipe: Recipe) -> None:
    card = write_card(recipe, step=7, tokens=28_672, results=results(28_672))
    for words in (
        *("# teuken7b, miniature", "**This is a miniature**", recipe.description),
        *(compute_fingerprint(recipe), "28,672 of 614,400 tokens, 7 steps"),
        *("3.2500 nats", "6.0000 nats", "7.0000 nats", "python_source 0.600"),
        "| held-out loss after step 5, weighted as the mixture | 3.5000 nats",
        "| held-out loss after step 5, plain mean over sources | 4.5000 nats",
        "## Assumed, not in the sources",
        "| `warmup_tokens` | 8,388,608,000 | 2,000 steps, as Llama 2",
    ):
        assert words in card
    for given in (None, results(30_000)):
        card = write_card(recipe, step=7, tokens=28_672, results=given)
        assert "nats" not in card


def test_the_card_has_no_folder_of_the_training_machine(recipe: Recipe) -> None:
    why = "A model on /home/alice/texts/*.txt and ~alice/more/b.txt."
    reason = "as /scratch/alice/notes.md says"
    assumed = {"text": AssumedValue(value="/home/alice/a.txt", reason=reason)}
    changed = recipe.model_copy(update={"description": why, "assumed": assumed})
    card = write_card(changed, step=7, tokens=28_672, results=None)
    assert "alice" not in card
    for words in ("on *.txt and b.txt", "| a.txt |", "as notes.md says"):
        assert words in card.replace("`", "")


def test_the_card_escapes_markup(recipe: Recipe) -> None:
    markup = "\n## x <img src=//a> ![b](//c) \\<i> \\[d](//e) \u202e"
    assumed = {"text": AssumedValue(value=markup, reason=markup)}
    changed = recipe.model_copy(update={"description": f"why{markup}", "assumed": assumed})
    card = write_card(changed, step=7, tokens=28_672, results=None)
    assert r"why ## x \<img src=//a> !\[b](//c) \\\<i> \\\[d](//e)" in card
    # An even number of backslashes before a character does not escape it.
    assert not re.search(r"(?<!\\)(?:\\\\)*[<\[][!a-z]", card.partition("## Use")[0])
    assert "\u202e" not in card
