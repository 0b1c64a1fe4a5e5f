"""Received tokenizers are opened in a child process first; lossy ones are refused."""

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from components.data import tokenizer_file
from components.data.byte_bpe import ByteBPE
from components.data.probe_tokenizer import bound_growth
from components.data.tokenizer_file import (
    check_end,
    check_engine,
    open_engine,
    open_pieces,
    refuse_panics,
)
from components.errors import RecipeError
from tests.components.data.engines import EOD, declare_engine, train_engine
from tests.components.data.test_byte_bpe import make, words


def doubling(times: int, pattern: dict[str, str]) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": pattern, "content": "aa"}
    return {"type": "Sequence", "normalizers": [step] * times}


def replace_by(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    by = {"pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Split"} | by


CUT = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
NESTED = [doubling(30, {"String": "a"}), doubling(30, {"Regex": "a"})]
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a panic while it encodes": ({"truncation": CUT | {"max_length": 1, "stride": 5}}, ""),
    "replacements that double a letter each": (
        {"normalizer": doubling(60, {"String": "a"})},
        "its replacements can turn",
    ),
    "replacements in a sequence inside of another": (
        {"normalizer": {"type": "Sequence", "normalizers": NESTED}},
        "its replacements can turn",
    ),
    "a long replacement": (
        {"normalizer": replace_by("the", "x" * 10_000)},
        "its replacements can turn one character into 3333",
    ),
    "replacements of its decoder": (
        {"decoder": {"type": "Sequence", "decoders": [replace_by("a", "aaaa")] * 30}},
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
    "merges of missing pieces": (
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


def test_a_valid_tokenizer_is_opened_in_a_child_once(valid, tmp_path, monkeypatch):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(valid), "utf-8")
    open_engine(file, "fetch it")
    monkeypatch.setattr(subprocess, "run", None)  # a second child would fail
    assert open_engine(file, "fetch it").get_vocab_size() == 400


def test_a_tokenizer_trained_here_needs_no_child_process(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    tokenizer = make()
    tokenizer.train_on_texts(words(seed=7), tmp_path)
    make().load_file(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xff\x01", b"\0" * 1000])
def test_invalid_sentencepiece_models_are_refused(tmp_path, content) -> None:
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
        (replace_by(" ", "\u2581"), 1),
        (replace_by("``", '"'), 1),
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


def make_engine() -> Tokenizer:
    return train_engine("over the bridge the end")


def edit(change: Callable[[Any], object]) -> Tokenizer:
    tree = json.loads(make_engine().to_str())
    change(tree)
    return Tokenizer.from_str(json.dumps(tree))


def put(part: str, value: Any) -> Tokenizer:
    engine = make_engine()
    setattr(engine, part, value)
    return engine


def sequence(*steps: Any) -> Any:
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def add(**settings: Any) -> Tokenizer:
    engine = make_engine()
    engine.add_tokens([AddedToken("<mask>", **settings)])
    return engine


def without_byte(tree: Any) -> None:
    vocab = tree["model"]["vocab"]
    gone = vocab.pop("\u0143")
    vocab.update({piece: index - (index > gone) for piece, index in vocab.items()})


def give_same_id(tree: Any) -> None:
    vocab = tree["model"]["vocab"]
    vocab["~"] = vocab["}"]


PAD: dict[str, Any] = {
    "strategy": {"Fixed": 8},
    "direction": "Right",
    "pad_to_multiple_of": None,
}
PAD |= {"pad_id": 0, "pad_type_id": 0, "pad_token": EOD}
SPACES = pre_tokenizers.WhitespaceSplit()
SPACE_BEFORE = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)

LOSSY: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "truncation": (lambda: edit(lambda t: t.update(truncation=CUT)), "truncation enabled"),
    "padding": (lambda: edit(lambda t: t.update(padding=PAD)), "padding enabled"),
    "dropout": (lambda: edit(lambda t: t["model"].update(dropout=0.1)), "at random"),
    "gap": (lambda: edit(lambda t: t["model"]["vocab"].update(zzz=900)), "from 272 to 899"),
    "twice": (lambda: edit(give_same_id), "id 93 for both"),
    "byte": (lambda: edit(without_byte), "no piece for 1 of the 256 bytes"),
    "no steps": (lambda: put("pre_tokenizer", None), "BPE by no steps, not byte-level"),
    "words": (lambda: put("pre_tokenizer", pre_tokenizers.Whitespace()), "by Whitespace"),
    "white space": (lambda: put("pre_tokenizer", sequence(SPACES)), "the step WhitespaceSplit"),
    "removed": (lambda: put("pre_tokenizer", sequence(cut("removed"))), "the step Split"),
    "removed punctuation": (
        lambda: put("pre_tokenizer", sequence(pre_tokenizers.Punctuation("removed"))),
        "which can change or remove text",
    ),
    "removed delimiter": (
        lambda: put("pre_tokenizer", sequence(pre_tokenizers.CharDelimiterSplit("x"))),
        "the step CharDelimiterSplit",
    ),
    "suffix": (lambda: edit(lambda t: t["model"].update(end_of_word_suffix="</w>")), "encodes"),
    "space before every piece": (
        lambda: put("pre_tokenizer", pre_tokenizers.Sequence([cut("isolated"), SPACE_BEFORE])),
        "encodes",
    ),
    "lower case": (lambda: put("normalizer", normalizers.Lowercase()), "the step Lowercase"),
    "strip": (lambda: put("normalizer", normalizers.Strip()), "the step Strip"),
    "accents": (lambda: put("normalizer", normalizers.StripAccents()), "the step StripAccents"),
    "replaced": (lambda: put("normalizer", normalizers.Replace("foo", "")), "the step Replace"),
    "in a sequence": (
        lambda: put("normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.Nmt()])),
        "the step Nmt",
    ),
    "left": (lambda: add(lstrip=True), "'<mask>', which removes the spaces"),
    "right": (lambda: add(rstrip=True, special=True), "'<mask>', which removes the spaces"),
}


def cut(behavior: str) -> Any:
    return pre_tokenizers.Split(Regex(r"foo|\S+"), behavior)


@pytest.mark.parametrize("name", LOSSY)
def test_a_tokenizer_that_changes_or_loses_text_is_refused(name: str) -> None:
    make, message = LOSSY[name]
    with pytest.raises(RecipeError, match=message):
        check_engine("tok", make())


TAKEN = {
    "plain": make_engine,
    "space before a text": lambda: put("pre_tokenizer", pre_tokenizers.ByteLevel()),
    "compatible forms": lambda: put("normalizer", normalizers.NFKC()),
    "decomposed": lambda: put(
        "normalizer", normalizers.Sequence([normalizers.NFD(), normalizers.Prepend(" ")])
    ),
    "digits": lambda: put("pre_tokenizer", sequence(pre_tokenizers.Digits(True))),
    "punctuation": lambda: put("pre_tokenizer", sequence(pre_tokenizers.Punctuation())),
    "no decoder": lambda: put("decoder", None),
    "ordinary pieces added": lambda: add(single_word=True, normalized=True),
    "runs of spaces": lambda: with_piece("   "),
    "a letter added": lambda: with_piece("\u00e9"),
}


def with_piece(piece: str) -> Tokenizer:
    engine = make_engine()
    engine.add_tokens([AddedToken(piece, normalized=False)])
    return engine


@pytest.mark.parametrize("name", TAKEN)
def test_a_tokenizer_that_encodes_every_text_is_accepted(name: str) -> None:
    check_engine("tok", TAKEN[name]())


@pytest.mark.parametrize(
    "eod", ["e", "the", "\u0120the", ".", "\n", "...", "end of text", "\u0939\u093f", "don't"]
)
@pytest.mark.parametrize("is_added", [True, False])
def test_an_ordinary_word_is_refused_as_end_of_document(eod: str, is_added: bool) -> None:
    engine = make_engine()
    if is_added:
        engine.add_special_tokens([eod])
    with pytest.raises(RecipeError, match="its end-of-document"):
        check_end("tok", engine, eod)


@pytest.mark.parametrize("eod", ["</s>", "[EOS]", "<|im_end|>", "<\uff5cend\u2581of\uff5c>"])
def test_a_special_piece_is_accepted_as_end_of_document(eod: str) -> None:
    engine = make_engine()
    with pytest.raises(RecipeError, match="a piece of ordinary text"):
        check_end("tok", engine, eod)
    engine.add_special_tokens([eod])
    check_end("tok", engine, eod)


def test_training_refuses_a_lossy_tokenizer(tmp_path: Path) -> None:
    engine = put("normalizer", normalizers.Lowercase())
    engine.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RecipeError, match="the step Lowercase"):
        ByteBPE(**declare_engine(engine)).load_file(tmp_path)
