"""The bytes of tokens, counted from their pieces, against the text that was encoded."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.data.token_file import pack_documents
from components.evaluate.text_loss import read_text_bytes

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [
    part
    for name in ("de", "el", "ga")
    for part in (ROOT / f"corpora/eu24/{name}.txt").read_text("utf-8").split("\n\n")
]
ODD = "x  = [\t'ﬁ', '½', '漢字', '🜚'];\r\n\n    end<eod>"


def trained(recipe: str, folder: Path, **settings: Any) -> Any:
    section = dict(compose_recipe(read_point([f"recipe={recipe}", "scale=mini"])).tokenizer)
    tokenizer = build_node(section | settings, "tokenizer")
    tokenizer.train_on_texts(TEXTS, folder)
    return tokenizer


@pytest.mark.parametrize(
    ("recipe", "vocab_size", "form", "prefix", "lost"),
    # To the unigram <eod> in a text is an end of document, behind which there is no prefix.
    [("teuken7b", 700, "NFKC", True, len("<eod>") + 1), ("gpt3b6", 400, None, False, 0)],
    ids=["unigram", "byte BPE"],
)
def test_the_pieces_of_documents_have_as_many_bytes_as_their_text(
    recipe: str, vocab_size: int, form: Any, prefix: bool, lost: int, tmp_path: Path
) -> None:
    tokenizer = trained(recipe, tmp_path, vocab_size=vocab_size)
    found = read_text_bytes(tmp_path, eod_id=tokenizer.eod_id)
    assert found is not None
    documents = [*TEXTS, ODD]
    ids, _ = pack_documents(
        tokenizer.encode(documents), eod_id=tokenizer.eod_id, vocab_size=vocab_size
    )
    begun = np.concatenate([[tokenizer.eod_id], ids]).astype(np.int64)[None]
    texts = [unicodedata.normalize(form, one) if form else one for one in documents]
    spelled = sum(len(one.encode()) for one in texts)
    assert found.count_bytes(begun) == spelled - lost


def test_nobody_can_count_where_a_piece_stands_for_any_text(tmp_path: Path) -> None:
    assert read_text_bytes(tmp_path, eod_id=0) is None
    trained("teuken7b", tmp_path, vocab_size=500, byte_fallback=False)
    assert read_text_bytes(tmp_path, eod_id=4) is None
