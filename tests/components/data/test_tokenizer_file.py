"""Tokenizer files from somebody else are opened in a child process first, with limits."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from components.data import tokenizer_file
from components.data.probe_tokenizer import bound_growth
from components.data.tokenizer_file import open_engine, open_pieces, refuse_panics
from components.errors import RecipeError
from tests.components.data.test_byte_bpe import make, words


def doubling(times: int, pattern: dict[str, str]) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": pattern, "content": "aa"}
    return {"type": "Sequence", "normalizers": [one] * times}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a panic while it encodes": (
        {
            "truncation": {
                "direction": "Right",
                "max_length": 1,
                "strategy": "LongestFirst",
                "stride": 5,
            }
        },
        "",
    ),
    "replacements that double a letter each": (
        {"normalizer": doubling(60, {"String": "a"})},
        "its replacements can turn",
    ),
    "replacements in a sequence inside of another": (
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [doubling(30, {"String": "a"}), doubling(30, {"Regex": "a"})],
            }
        },
        "its replacements can turn",
    ),
    "a long replacement": (
        {
            "normalizer": {
                "type": "Replace",
                "pattern": {"String": "the"},
                "content": "x" * 10_000,
            }
        },
        "its replacements can turn one character into 3333",
    ),
    "replacements of its decoder": (
        {
            "decoder": {
                "type": "Sequence",
                "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}]
                * 30,
            }
        },
        "its replacements can turn",
    ),
    "an added piece that replacements would make huge": (
        {
            "normalizer": doubling(60, {"String": "a"}),
            "added_tokens": [{"id": 400, "content": "a" * 50, "normalized": True, **ADDED}],
        },
        "its replacements can turn",
    ),
    "a part of another type": ({"normalizer": [1, 2]}, ""),
    "no model": ({"model": None}, ""),
    "merges of pieces that are not there": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        "",
    ),
    "a pattern that cannot be read": ({"pre_tokenizer": split("(((")}, ""),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("trained")
    make().train_on_texts(words(), folder)
    tree: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    return tree


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_with_its_file(valid, tmp_path, name) -> None:
    changes, message = HOSTILE[name]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**valid, **copy.deepcopy(changes)}), "utf-8")
    with pytest.raises(RecipeError, match=f"is not a tokenizer: .*{message}") as refused:
        open_engine(file, "fetch it")
    assert refused.value.path == str(file)


def test_a_valid_tokenizer_is_opened_in_a_child_process_once(valid, tmp_path, monkeypatch):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(valid), "utf-8")
    open_engine(file, "fetch it")
    monkeypatch.setattr(subprocess, "run", None)  # a second child would fail
    assert open_engine(file, "fetch it").get_vocab_size() == 400


def test_a_tokenizer_that_was_trained_here_needs_no_child_process(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    tokenizer = make()
    tokenizer.train_on_texts(words(seed=7), tmp_path)
    make().load_file(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xff\x01", b"\0" * 1000])
def test_bytes_that_are_no_sentencepiece_model_are_refused(tmp_path, content) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(RecipeError, match="is not a SentencePiece model"):
        open_pieces(tmp_path / "tokenizer.model", "fetch it")


def test_a_file_that_is_too_large_or_not_a_file_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_file, "MOST_BYTES", 10)
    file = tmp_path / "tokenizer.json"
    file.write_text("[" * 11)
    with pytest.raises(RecipeError, match="is larger than"):
        open_engine(file, "fetch it")
    with pytest.raises(RecipeError, match="is not a regular file"):
        open_engine(Path("/dev/zero"), "fetch it")


def test_a_child_process_that_does_not_end_is_killed(valid, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tokenizer_file, "WAIT_SECONDS", 0.01)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**valid, "version": "2.0"}), "utf-8")
    with pytest.raises(RecipeError, match="needs too much time or memory"):
        open_engine(file, "fetch it")


def test_a_panic_is_an_error_and_other_exceptions_pass() -> None:
    class PanicException(BaseException):
        pass

    works = "is not a working tokenizer: called unwrap"
    with pytest.raises(RecipeError, match=works), refuse_panics("x.json"):
        raise PanicException("called unwrap")
    with pytest.raises(KeyboardInterrupt), refuse_panics("x.json"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("part", "growth"),
    [
        (None, 1),
        ({"type": "NFC"}, 1),
        ({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, 1),
        ({"type": "Replace", "pattern": {"String": "``"}, "content": '"'}, 1),
        ({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}, 2),
        (doubling(3, {"String": "a"}), 8),
    ],
)
def test_growth_is_the_product_of_all_replacements(part, growth) -> None:
    assert bound_growth(part) == growth


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["(a+)+$", "(a|a)*b", "(.*)*x"])
def test_patterns_that_backtrack_do_not_hang(valid, tmp_path, suffix) -> None:
    file = tmp_path / "tokenizer.json"
    tree = {**valid, "pre_tokenizer": split(suffix)}
    file.write_text(json.dumps(tree), "utf-8")
    try:
        engine = open_engine(file, "fetch it")
        with refuse_panics(file):
            engine.encode("a" * 200)
    except RecipeError:
        pass
