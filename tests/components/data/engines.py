"""Byte-level tokenizers as users bring them."""

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOD = "<|endoftext|>"


def train_engine(
    text: str,
    vocab_size: int = 280,
    special: list[str] | None = None,
    *,
    prefix: bool = False,
    split: Any = None,
) -> Tokenizer:
    """Train a byte-level BPE; ``split`` replaces GPT-2's pattern."""
    engine = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    steps = pre_tokenizers.Sequence([split, byte_level]) if split else byte_level
    engine.pre_tokenizer, engine.decoder = steps, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special or [EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator([text] * 9, trainer)
    return engine


def declare_engine(engine: Tokenizer, eod: str = EOD) -> dict[str, Any]:
    """Return the settings of a recipe that uses the tokenizer."""
    settings = {"normalization": "none", "pattern": "x", "longest_space_run": 0}
    pieces = {"first_pieces": [eod], "last_pieces": [], "eod": eod}
    return {"vocab_size": engine.get_vocab_size()} | settings | pieces
