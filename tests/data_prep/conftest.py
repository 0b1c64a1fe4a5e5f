"""A small tokenizer and sources with enough text for it."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from components.config.schema.data import Source
from components.config.schema.document_steps import DocumentSteps
from components.config.validation import read_section
from components.data.unigram import Unigram

CONF = Path(__file__).resolve().parents[2] / "conf"
SETTINGS = CONF / "tokenizer" / "unigram_eu24.yaml"


def make_tokenizer(vocab_size: int = 570) -> Unigram:
    settings = yaml.safe_load(SETTINGS.read_text())
    settings.pop("_target_")
    return Unigram(**{**settings, "vocab_size": vocab_size, "num_threads": 2})


@pytest.fixture
def tokenizer() -> Unigram:
    return make_tokenizer()


@pytest.fixture
def new_tokenizer() -> Callable[[int], Unigram]:
    return make_tokenizer


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    """Write a text file of 40 paragraphs and a JSONL file of 25 records in other letters."""
    texts = tmp_path / "texts"
    texts.mkdir()
    text, jsonl = texts / "a.txt", texts / "b.jsonl"
    text.write_text("\n\n".join(make_paragraphs(40, "abcde", seed=1)), encoding="utf-8")
    records = [json.dumps({"text": words}) for words in make_paragraphs(25, "äöüßz", seed=2)]
    jsonl.write_text("\n".join(records), encoding="utf-8")
    return {"first": Source(files=(str(text),)), "second": Source(files=(str(jsonl),))}


def make_paragraphs(count: int, letters: str, seed: int) -> list[str]:
    draw = random.Random(seed)
    words = ["".join(draw.choices(letters, k=draw.randint(2, 6))) for _ in range(60)]
    return [" ".join(draw.choices(words, k=80)) for _ in range(count)]


@pytest.fixture(scope="session")
def preset() -> Callable[[str], DocumentSteps]:
    """Read the steps of a work as Hydra composes them, with the defaults."""

    def read(name: str) -> DocumentSteps:
        files = [CONF / "preparation" / f"{stem}.yaml" for stem in ("engine", "plain", name)]
        tree = {
            key: value
            for file in files
            for key, value in yaml.safe_load(file.read_text("utf-8")).items()
            if key in DocumentSteps.model_fields
        }
        return read_section(DocumentSteps, tree, "data.preparation")

    return read
