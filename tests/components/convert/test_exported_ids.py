"""A user's tokenizer gives the same ids in training and from the exported folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from components.convert.tokenizer import write_tokenizer
from components.data.byte_bpe import ByteBPE
from tests.components.data.engines import EOD, declare_engine, train_engine

SPECIAL = [EOD, "<s>", "</s>", "[CLS]", "[SEP]", "<pad>"]
TEXTS = [
    *("", " ", "a", " a", "Once upon a time", "I'll, they"),
    "two  spaces \n\n lines\tand tabs ",
    *("e\u0301 \u00e9 \ufb01", "\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f600 \u6f22"),
    *(f"one{EOD}two", f"{EOD}", "<s> as text </s>", "[CLS] [SEP]<pad>", "over the<extra>the"),
    *("a <extra> b", "x<whole>y <whole> z", "1234567", "\x00\x1c\ufeff", "the end " * 60),
]
NO_SPECIAL = [("<s>", 1), ("</s>", 2)]
POST_PROCESSORS: dict[str, Any] = {
    "none": None,
    "offsets": processors.ByteLevel(trim_offsets=False),
    "bos": processors.TemplateProcessing("<s> $A", "<s> $A $B", NO_SPECIAL),
    "eod": processors.TemplateProcessing(f"$A {EOD}", f"$A {EOD} $B {EOD}", [(EOD, 0)]),
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    "bert": processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3)),
    "sequence": processors.Sequence([
        processors.ByteLevel(),
        processors.TemplateProcessing("<s> $A </s>", "<s> $A $B", NO_SPECIAL),
    ]),
}


def make_engine(
    *, normalizer: Any = None, prefix: bool = False, split: Any = None, special: int = True
) -> Tokenizer:
    """Train a byte-level BPE with the special pieces first and two added ones last."""
    text = "over the bridge the end one two <s> as text"
    engine = train_engine(text, 330, SPECIAL, prefix=prefix, split=split)
    engine.normalizer = normalizer
    engine.add_tokens([
        AddedToken("<extra>", special=bool(special), normalized=not special),
        AddedToken("<whole>", special=bool(special), single_word=True),
    ])
    return engine


def save(engine: Tokenizer, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    engine.save(str(folder / "tokenizer.json"))
    return declare_engine(engine)


def export_tokenizer(folder: Path, section: dict[str, Any], model_type: str = "llama") -> Any:
    target = folder.with_name("exported")
    target.mkdir()
    write_tokenizer(folder, section, target, context_tokens=16)
    (target / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(target)


def encode_in_training(folder: Path, section: dict[str, Any]) -> list[list[int]]:
    tokenizer = ByteBPE(**section)
    tokenizer.load_file(folder)
    return [ids.tolist() for ids in tokenizer.encode(TEXTS)]


CUT = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+"), "isolated")
ENGINES: list[dict[str, Any]] = [
    {"normalizer": normalizer, "prefix": prefix, "split": split, "special": (row + column) % 2}
    for row, normalizer in enumerate((None, normalizers.NFC(), normalizers.NFKC()))
    for column, (prefix, split) in enumerate([
        (False, None),
        (True, None),
        (False, CUT),
        (False, pre_tokenizers.Digits(True)),
    ])
]


@pytest.mark.parametrize("number", range(len(ENGINES)))
def test_every_byte_level_tokenizer_gives_the_ids_of_training(number: int, tmp_path) -> None:
    """Every post-processor, which would add ids, occurs once or twice."""
    engine = make_engine(**ENGINES[number])
    engine.post_processor = [*POST_PROCESSORS.values()][number % len(POST_PROCESSORS)]
    section = save(engine, tmp_path / "tok")
    trained = encode_in_training(tmp_path / "tok", section)
    model_type = ("llama", "gpt2", "qwen3", "bloom", "gemma3_text", "olmo2")[number % 6]
    loaded = export_tokenizer(tmp_path / "tok", section, model_type)
    assert [loaded(text)["input_ids"] for text in TEXTS] == trained
    assert [loaded.encode(text) for text in TEXTS] == trained
    assert loaded(TEXTS)["input_ids"] == trained
    exported = Tokenizer.from_file(str(tmp_path / "exported" / "tokenizer.json"))
    assert [exported.encode(text).ids for text in TEXTS] == trained


def encode_pairs(loaded: Any, pairs: Sequence[tuple[str, str]]) -> list[tuple[Any, Any]]:
    from lm_eval.models.huggingface import HFLM

    harness: Any = HFLM.__new__(HFLM)
    harness.tokenizer, harness.backend, harness.add_bos_token = loaded, "causal", None
    harness.custom_prefix_token_id = None
    return [harness._encode_pair(*pair) for pair in pairs]


@pytest.mark.long  # lm-eval takes seconds to import
@pytest.mark.parametrize("name", POST_PROCESSORS)
def test_lm_eval_scores_every_token_of_a_continuation(name: str, tmp_path: Path) -> None:
    engine = make_engine()
    engine.post_processor = POST_PROCESSORS[name]
    section = save(engine, tmp_path / "tok")
    loaded = export_tokenizer(tmp_path / "tok", section)
    pairs = [("Once upon", " a time"), ("the end", ", two"), ("one:", " over the bridge")]
    for pair, (context, continuation) in zip(pairs, encode_pairs(loaded, pairs), strict=True):
        assert engine.decode(context, skip_special_tokens=False) == pair[0]
        assert engine.decode(continuation, skip_special_tokens=False) == pair[1]


def test_truncation_and_padding_are_not_exported(tmp_path: Path) -> None:
    engine = make_engine()
    expected = [engine.encode(text).ids for text in TEXTS]
    engine.enable_truncation(4)
    engine.enable_padding(length=9)
    section = save(engine, tmp_path / "tok")
    loaded = export_tokenizer(tmp_path / "tok", section)
    assert [loaded(text)["input_ids"] for text in TEXTS] == expected


def test_a_piece_of_ordinary_text_gets_no_role(tmp_path: Path) -> None:
    """``transformers`` would find a special piece in texts before it merges characters."""
    words = pre_tokenizers.Split(Regex(r"\S+"), "isolated")
    engine = train_engine("<s>x <pad>y <s>", 290, [EOD], split=words)
    assert engine.token_to_id("<s>") is not None
    section = save(engine, tmp_path / "tok")
    tokenizer = ByteBPE(**section)
    tokenizer.load_file(tmp_path / "tok")
    loaded = export_tokenizer(tmp_path / "tok", section)
    assert loaded.bos_token is None
    spelled = ["<s>x", "a<s>b<s>", "<pad>y<pad>"]
    encoded = [ids.tolist() for ids in tokenizer.encode(spelled)]
    assert [loaded(text)["input_ids"] for text in spelled] == encoded
