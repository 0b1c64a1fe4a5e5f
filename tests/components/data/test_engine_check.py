"""Which tokenizers training takes: those that encode every text, and lose none of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from components.data.byte_bpe import ByteBPE
from components.data.tokenizer_file import check_end, check_engine
from components.errors import RecipeError

EOD = "<|endoftext|>"
Change = Callable[[Any], object]


def make_engine() -> Tokenizer:
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(["over the bridge the end"] * 9, trainer)
    return engine


def edit(change: Change) -> Tokenizer:
    """Change the tree of ``tokenizer.json`` and read it again."""
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
    """Take the piece of one byte out, and close the gap."""
    vocab = tree["model"]["vocab"]
    gone = vocab.pop("\u0143")
    vocab.update({piece: index - (index > gone) for piece, index in vocab.items()})


def give_same_id(tree: Any) -> None:
    vocab = tree["model"]["vocab"]
    vocab["~"] = vocab["}"]


CUT = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
PAD = {
    "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
    "pad_type_id": 0, "pad_token": EOD,
}  # fmt: skip
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
def test_a_tokenizer_that_changes_or_loses_text_is_refused_with_the_reason(name: str) -> None:
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
def test_a_tokenizer_that_spells_every_text_is_taken(name: str) -> None:
    check_engine("tok", TAKEN[name]())


@pytest.mark.parametrize(
    "eod", ["e", "the", "\u0120the", ".", "\n", "...", "end of text", "\u0939\u093f", "don't"]
)
@pytest.mark.parametrize("is_added", [True, False])
def test_a_word_of_the_text_ends_no_document(eod: str, is_added: bool) -> None:
    engine = make_engine()
    if is_added:
        engine.add_special_tokens([eod])
    with pytest.raises(RecipeError, match="its end-of-document"):
        check_end("tok", engine, eod)


@pytest.mark.parametrize("eod", ["</s>", "[EOS]", "<|im_end|>", "<\uff5cend\u2581of\uff5c>"])
def test_a_special_piece_ends_a_document(eod: str) -> None:
    engine = make_engine()
    with pytest.raises(RecipeError, match="a piece of ordinary text"):
        check_end("tok", engine, eod)
    engine.add_special_tokens([eod])
    check_end("tok", engine, eod)


def test_what_training_loads_is_checked(tmp_path: Path) -> None:
    engine = put("normalizer", normalizers.Lowercase())
    engine.save(str(tmp_path / "tokenizer.json"))
    tokenizer = ByteBPE(
        vocab_size=engine.get_vocab_size(),
        normalization="none",
        pattern="x",
        first_pieces=[EOD],
        longest_space_run=0,
        last_pieces=[],
        eod=EOD,
    )
    with pytest.raises(RecipeError, match="the step Lowercase"):
        tokenizer.load_file(tmp_path)
