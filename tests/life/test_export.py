"""A run becomes a folder that ``transformers`` loads by itself and generates text from."""

import os
import shutil
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from safetensors.torch import load_file
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM, AutoTokenizer

from command.actions import export
from command.arguments import read_point
from components.build import build_node
from components.checkpoint.metadata import newest_checkpoint
from components.config.check import read_recipe
from components.convert.reading import read_folder
from components.errors import RecipeError
from tests.life.conftest import Program, act, saved, tiny


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    """Four steps, which end in a checkpoint; weights alone after two of them and after all."""
    run = home / "few"
    words = tiny("budget.total_tokens=2_048", "checkpoint.weights_every_tokens=1_024")
    assert act(home, *words, f"run={run}") == 0
    return run


@pytest.fixture(scope="module")
def exported(trained: Path, home: Path) -> Path:
    assert act(home, "action=export", f"run={trained}", "file=hf") == 0
    return home / "hf"


@pytest.mark.long
def test_transformers_generates_text_from_the_folder(exported: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    prompt = tokenizer("The baker", return_tensors="pt")
    generated = model.generate(
        prompt["input_ids"],
        attention_mask=prompt["attention_mask"],
        min_new_tokens=5,
        max_new_tokens=5,
        do_sample=False,
    )
    assert generated.shape[1] == prompt["input_ids"].shape[1] + 5
    assert tokenizer.decode(generated[0]).startswith("The baker")


def test_the_folder_holds_the_weights_of_the_last_checkpoint(exported, trained):
    recipe = read_recipe(trained / "recipe.json")
    assert recipe.decoder_spec.padded_vocab_size > recipe.decoder_spec.vocab_size
    model = build_node(recipe.model, "model")
    pieces = recipe.tokenizer["vocab_size"]
    read_folder(exported, model, section=recipe.model, tokenizer_vocab_size=pieces)
    weights = saved(trained)
    for name, value in model.named_parameters():
        rows = recipe.decoder_spec.vocab_size if name == "embedding.weight" else len(value)
        assert torch.equal(value[:rows], weights[f"model.{name}"][:rows]), name


def test_the_exported_tokenizer_equals_that_of_the_run(exported: Path) -> None:
    reference = SentencePieceProcessor(model_file=str(exported / "tokenizer.model"))
    tokenizer = AutoTokenizer.from_pretrained(exported)
    text = "Ein Pfund Mehl, 2 Eier.\nDvě žemle."
    assert tokenizer(text)["input_ids"] == reference.encode(text)


def test_the_card_describes_the_run(exported: Path) -> None:
    card = (exported / "README.md").read_text()
    assert "# teuken7b, miniature" in card
    assert "2,048 of 2,048 tokens, 4 steps" in card
    assert "held-out loss" in card


def test_padded_rows_are_kept_on_request(trained: Path, program: Program) -> None:
    done = program("action=export", f"run={trained}", "rows=padded")
    newest = newest_checkpoint(trained / "checkpoints")
    assert newest is not None
    folder = trained / "export" / newest.name
    assert done.stdout == f"{folder}\n"
    assert "LlamaForCausalLM, trained on 2,048 tokens\n" in done.stderr
    recipe = read_recipe(trained / "recipe.json")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == recipe.decoder_spec.padded_vocab_size


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_weights_snapshot_exports_the_bytes_of_the_full_checkpoint(
    exported: Path, trained: Path, tmp_path: Path, program: Program
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / f"tokens-{2_048:015d}")
    program("action=export", f"run={run}", f"file={tmp_path / 'alone'}")
    assert contents(tmp_path / "alone") == contents(exported)


def test_an_earlier_snapshot_is_exported_by_its_tokens(exported, trained, program):
    done = program("action=export", f"run={trained}", "at_tokens=1_024")
    folder = trained / "export" / f"weights-{1_024:015d}"
    assert done.stdout == f"{folder}\n"
    assert "1,024 of 2,048 tokens, 2 steps" in (folder / "README.md").read_text()
    early, last = (load_file(one / "model.safetensors") for one in (folder, exported))
    (snapshot,) = (trained / "checkpoints" / folder.name).glob("*.safetensors")
    kept = load_file(snapshot)["model.final_norm.weight"]
    assert torch.equal(early["model.norm.weight"], kept)
    assert not torch.equal(kept, last["model.norm.weight"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recipe=teuken7b",), "run: a run is required: a recipe has no weights"),
        (("run=few", "file=hf"), "file: hf exists"),
        (("run=nowhere",), "run: nowhere is not a run folder"),
        (("run=new",), "run: new has no complete checkpoint"),
        (("run=few", "rows=all"), "rows: input should be 'published' or 'padded'"),
        (
            ("run=few", "at_tokens=512"),
            "at_tokens: no checkpoint at 512 tokens in few/checkpoints",
        ),
    ],
)
def test_an_invalid_export_is_refused(words, message, trained, exported, home, monkeypatch):
    (home / "new" / "checkpoints").mkdir(parents=True, exist_ok=True)
    (home / "new" / "recipe.json").write_bytes((trained / "recipe.json").read_bytes())
    monkeypatch.chdir(home)
    with pytest.raises(RecipeError, match=message):
        export.run(read_point(["action=export", *words]))
