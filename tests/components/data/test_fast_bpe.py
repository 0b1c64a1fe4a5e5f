import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from components.data import byte_bpe
from components.data.byte_bpe import open_fast
from tests.components.data.test_byte_bpe import FAMILIES, ROOT, make, words

ABSENT = find_spec("fastokens") is None
pytestmark = pytest.mark.skipif(ABSENT, reason="fastokens is optional and not installed")
LANGUAGES = sorted((ROOT / "corpora" / "eu24").glob("*.txt"))


def real_texts() -> list[str]:
    """Return texts in 24 languages, code of this repository, and random words."""
    code = [path.read_text("utf-8")[:2_000] for path in sorted(ROOT.glob("data_prep/*.py"))]
    return [*(path.read_text("utf-8") for path in LANGUAGES), *code, *words()]


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory) -> tuple[Any, Engine]:
    """Return the encoders of fastokens and `tokenizers`, with 2,000 pieces."""
    folder = tmp_path_factory.mktemp(request.param)
    make(request.param, vocab_size=2_000).train_on_texts(real_texts(), folder)
    content = (folder / "tokenizer.json").read_text("utf-8")
    engine = Engine.from_str(content)
    encode = open_fast(content, engine)
    assert encode is not None, "fastokens reads every family"
    return encode, engine


def same(both: tuple[Any, Engine], texts: list[str]) -> bool:
    encode, engine = both
    expected = engine.encode_batch_fast(texts, add_special_tokens=False)
    return [ids.tolist() for ids in encode(texts)] == [encoding.ids for encoding in expected]


def test_real_text_and_all_code_points_get_the_ids_of_the_engine(both):
    assert same(both, real_texts())
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    rows = ["".join(points[start : start + 97]) for start in range(0, len(points), 97 * 13)]
    assert same(both, rows)
    known = [*points[:0x3400], *points[0xF000:0x20000]]
    assert same(both, [f" {c}a{c}{c} {c}1{c}. {c}" for c in known[::23]])
    encode, _ = both
    assert encode([]) == []
    assert [ids.tolist() for ids in encode(["", ""])] == [[], []]
    assert encode(["a"])[0].dtype == np.int32


@settings(max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
        | st.sampled_from(["<|endoftext|>", "</s>", "<pad>", " ", "  ", "\n", "\x00", "'ll"]),
        max_size=8,
    ).map("".join)
)
def test_any_text_gets_the_ids_of_the_engine(both, text):
    assert same(both, [text, f" {text}", f"a{text}b", text * 3])


def test_long_texts_get_the_ids_of_the_engine(both):
    parts = ("a", "ab cd", " ", "\n \t", "!?", "\u0301", "0123456789")
    assert same(both, [part * 20_000 for part in parts])


def test_a_lone_surrogate_is_refused_as_by_the_engine(both):
    encode, engine = both
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        encode(["a\ud800"])
    with pytest.raises(TypeError):
        engine.encode_batch_fast(["a\ud800"])


def test_an_unsupported_tokenizer_is_left_to_the_engine(tmp_path: Path):
    """Here the file has merges and the engine has none."""
    make("bpe_gpt2").train_on_texts(words(), tmp_path)
    content = (tmp_path / "tokenizer.json").read_text("utf-8")
    tree = json.loads(content)
    tree["model"]["merges"] = []
    engine = Engine.from_str(json.dumps(tree))
    assert open_fast(content, engine) is None
    assert open_fast("{}", Engine.from_str(content)) is None


def test_ids_are_the_same_without_fastokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with_it, without = make("bpe_neox_dolma"), make("bpe_neox_dolma")
    with_it.train_on_texts(words(), tmp_path)
    monkeypatch.setattr(byte_bpe, "fastokens", None)
    without.load_file(tmp_path)
    assert without._fast is None
    assert with_it._fast is not None
    for one, other in zip(with_it.encode(words(3)), without.encode(words(3)), strict=True):
        assert one.tolist() == other.tolist()
