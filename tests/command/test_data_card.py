"""The card of a data set: counted from its files, escaped, and whole in one page."""

import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from command.main import main
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.report.data_card import data_card
from components.report.document import write_document
from tests.components.report.outline import check_outline
from tests.data_prep.corpora import paragraphs
from tests.life.conftest import TINY

MARKUP = "<script>alert('a text is no markup')</script> & more words than one, to be a text"
SETTINGS = (
    *(word for word in TINY if not word.startswith(("data.", "tokenizer."))),
    *("preparation=plain", "data.preparation.exact_duplicates={unit: document}"),
    *("data.preparation.workers=1", "tokenizer.vocab_size=640", "action=prepare"),
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, one with copies, prepared by the command; return the folder of the data."""
    home = tmp_path_factory.mktemp("card")
    german, french = paragraphs("de"), paragraphs("fr")
    texts = {"de": [MARKUP, *german, *german[:3]], "fr": french}
    random.Random(1).shuffle(texts["fr"])
    for name, lines in texts.items():
        records = "".join(json.dumps({"text": text}) + "\n" for text in lines)
        (home / f"{name}.jsonl").write_text(records)
    sources = (
        f"data.sources={{de: {{files: ['{home}/de.jsonl'], language: de, licence: 'A & B'}}, "
        f"fr: {{files: ['{home}/fr.jsonl'], origin: 'the house'}}}}"
    )
    words = [*SETTINGS, sources, "data.shares={de: 0.25, fr: 0.75}", f"data.folder={home}/data"]
    assert main(words) == 0
    (folder,) = (home / "data").glob("teuken7b-*")
    return folder


@pytest.fixture(scope="module")
def card(prepared: Path) -> Any:
    return json.loads((prepared / "card.json").read_text())


def test_a_card_counts_its_files_and_replaces_no_folder(prepared, card, tmp_path):
    manifest = Manifest.from_folder(prepared)
    for name, source in card["sources"].items():
        record = manifest.sources[name]
        files = [*record.train, *record.held_out]
        tokens = sum(len(np.fromfile(prepared / one.name, one.dtype)) for one in files)
        assert source["train_tokens"] + source["held_out_tokens"] == tokens
        assert source["documents"] == sum(one.documents for one in files)
    assert card["totals"]["documents"] == len(paragraphs("de")) + 1 + len(paragraphs("fr"))
    with pytest.raises(RecipeError, match="is a folder"):
        write_document(data_card(card), tmp_path)


def test_card_names_files_removals_and_mixture(prepared: Path, card: Any) -> None:
    for name, source in card["sources"].items():
        (given,) = source["inputs"]
        file = prepared.parents[1] / f"{name}.jsonl"
        assert given["name"].endswith(file.name)
        assert given["bytes"] == file.stat().st_size
        assert given["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    kept = card["stages"]["keep"]
    assert kept["sources"]["de"]["removed"] == {"exact duplicate": 3}
    (examples,) = kept["examples"].values()
    assert [one["text"] for one in examples] == [text[:200] for text in paragraphs("de")[:3]]
    promised = {name: one["mixture"]["promised_share"] for name, one in card["sources"].items()}
    assert promised == pytest.approx({"de": 0.25, "fr": 0.75})


def test_fertility_is_measured_with_the_tokenizer_of_the_folder(
    prepared: Path, card: Any
) -> None:
    (model,) = prepared.glob("*.model")
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(model))
    texts = [text[:2_000] for text in paragraphs("fr")]
    tokens = sum(len(ids) for ids in tokenizer.encode(texts))
    words = sum(Counter(text.split()).total() for text in texts)
    assert card["fertility"]["fr"]["tokens_per_word"] == pytest.approx(tokens / words)
    assert set(card["fertility"]) == {"de", "fr"}


def test_the_card_page_is_complete_and_loads_nothing(prepared: Path, card: Any) -> None:
    html = (prepared / "card.html").read_text()
    page = check_outline(html)
    assert json.loads(page.code[page.code.index("{") :]) == card
    assert all(one["href"].startswith("#") for one in page.all("a"))  # its own contents
    assert "<script>alert" not in html
    assert MARKUP in page.code
    for figure in ("A & B", "the house", f"{card['sources']['fr']['train_tokens']:,}"):
        assert figure in page.text
