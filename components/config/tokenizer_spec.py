"""Specifications of tokenizers: byte-level BPE and SentencePiece."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from components.config.schema.part import PartSpec
from components.ranges import Count, Share


def id_width(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Return the narrowest dtype of token ids below ``vocab_size``."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class TokenizerSpec(PartSpec):
    """Settings of any tokenizer."""

    vocab_size: Count


class ByteBPESpec(TokenizerSpec):
    """Byte-level BPE, which merges bytes within the pieces of a split pattern."""

    target: ClassVar[str] = "components.data.byte_bpe.ByteBPE"

    normalization: Literal["none", "nfc"]
    pattern: str
    first_pieces: list[str]
    longest_space_run: int
    last_pieces: list[str]
    eod: str


class UnigramSpec(TokenizerSpec):
    """SentencePiece's unigram or BPE model, with SentencePiece's option names."""

    target: ClassVar[str] = "components.data.unigram.Unigram"

    character_coverage: Share
    byte_fallback: bool
    normalization_rule_name: str
    remove_extra_whitespaces: bool
    add_dummy_prefix: bool
    required_chars: str
    num_threads: Count
    splitting: Mapping[str, bool]
    sentences: Mapping[str, Any]
    special_pieces: Mapping[str, Any]
    model_type: Literal["unigram", "bpe"] = "unigram"
