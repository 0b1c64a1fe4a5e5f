"""A user's tokenizer from ``new`` to an exported folder: one set of ids, and honest bytes."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from components.data.manifest import Manifest

EOD = "<|endoftext|>"
WORDS = "the miller carries flour over a bridge and \u0939\u093f\u0928\u094d\u0926\u0940"


@pytest.fixture(scope="module")
def documents() -> list[str]:
    draw = random.Random(5)
    return [
        " ".join(draw.choices(WORDS.split(), k=24)) + f", {number}." for number in range(400)
    ]


def make_tokenizer(folder: Path, documents: list[str]) -> None:
    """Train one that puts a space before a text and the end of a document behind it."""
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(documents, trainer)
    engine.post_processor = processors.TemplateProcessing(
        f"$A {EOD}", f"$A {EOD} $B {EOD}", [(EOD, 0)]
    )
    folder.mkdir()
    engine.save(str(folder / "tokenizer.json"))


def test_training_evaluation_and_export_agree_on_ids_and_bytes(home, program, documents):
    (home / "text.txt").write_text("\n\n".join(documents), "utf-8")
    make_tokenizer(home / "tok", documents)
    words = ("tokenizer=tok", "data=text.txt", "file=own.yaml")
    program("action=new", "name=own", *words)
    steps = ("budget.total_tokens=4_096", "budget.global_batch_tokens=2_048", "run=run")
    lengths = ("schedule.total_tokens=4_096", "schedule.warmup_tokens=2_048")
    program("recipe=own.yaml", *lengths, *steps)

    program("action=export", "run=run", "file=hf")
    loaded = AutoTokenizer.from_pretrained(home / "hf")
    data = Path(json.loads((home / "run" / "data.json").read_text())["folder"])
    manifest = Manifest.from_folder(home / data)
    plain = Tokenizer.from_file(str(home / "tok" / "tokenizer.json"))
    ids = [loaded(text)["input_ids"] for text in documents]
    assert ids == [plain.encode(text, add_special_tokens=False).ids for text in documents]
    (source,) = manifest.sources.values()
    assert source.train_tokens + source.held_out_tokens == sum(map(len, ids)) + len(ids)

    own = home / "judged.txt"
    own.write_text("\n\n".join(documents[:40]), "utf-8")
    done = program("action=evaluate", "output=json", "run=run", f"text={own}")
    figures = json.loads(done.stdout)["texts"][str(own)]
    first = len(str(plain.id_to_token(ids[0][0]))) - 1  # read only; its space is no text
    assert figures["bytes"] == sum(len(text.encode()) for text in documents[:40]) - first
