"""The tokenizer of a run as the files that ``AutoTokenizer`` loads, without remote code."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import ByteLevel

from components.data.tokenizer_file import open_engine, open_pieces
from components.errors import RecipeError

FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE_FILE = "tokenizer.model"
FETCH = "fetch or write the folder again"
UNDERLINE = "\u2581"  # SentencePiece's mark for a space

_NORMALIZERS = {"nfkc": [normalizers.NFKC()], "identity": []}
# How pieces with a role are spelled; the end of a document is named by the recipe.
_PADDING = ("<pad>", "<|padding|>")


def write_tokenizer(
    source: Path, section: Mapping[str, Any], target: Path, *, context_tokens: int
) -> dict[str, int | None]:
    """Write the tokenizer of ``source`` and return its ids, or raise a RecipeError."""
    if (source / SENTENCEPIECE_FILE).is_file():
        engine = convert_sentencepiece(source / SENTENCEPIECE_FILE, section)
        engine.save(str(target / FILE))
        shutil.copyfile(source / SENTENCEPIECE_FILE, target / SENTENCEPIECE_FILE)
    elif (source / FILE).is_file():
        engine = open_engine(source / FILE, FETCH)
        if _adds_nothing(engine):
            shutil.copyfile(source / FILE, target / FILE)
        else:
            engine.post_processor = None
            engine.no_truncation()
            engine.no_padding()
            engine.save(str(target / FILE))
    else:
        problem = f"there is neither {SENTENCEPIECE_FILE} nor {FILE}"
        alone = "of token files alone, with data.tokenizer_folder=FOLDER"
        remedy = f"prepare the run's data again with action=prepare; {alone}"
        raise RecipeError(str(source), problem, remedy)
    roles = _find_roles(engine, section)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": piece for role, piece in roles.items()},
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,  # training put nothing before a document
        "add_eos_token": False,
    }
    if (model := target / SENTENCEPIECE_FILE).is_file():
        pieces = open_pieces(
            model, FETCH
        )  # text that spells a control piece is plain text to it
        config["split_special_tokens"] = pieces.is_control(
            pieces.piece_to_id(str(roles["eos"]))
        )
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return {
        f"{role}_token_id": None if piece is None else engine.token_to_id(piece)
        for role, piece in roles.items()
    }


def _adds_nothing(engine: Tokenizer) -> bool:
    """Check that the engine's default call returns the ids of the text alone.

    Training encodes without the post-processor: a template such as ``<s> $A`` adds ids that
    the model has never seen in that place. ``ByteLevel`` changes offsets only.
    """
    only_offsets = isinstance(engine.post_processor, ByteLevel | None)
    return only_offsets and engine.truncation is None and engine.padding is None


def count_pieces(folder: Path) -> int | None:
    """Count the pieces of the tokenizer in a folder; None if it has no tokenizer."""
    if (folder / FILE).is_file():
        return int(open_engine(folder / FILE, FETCH).get_vocab_size())
    if (folder / SENTENCEPIECE_FILE).is_file():
        return int(open_pieces(folder / SENTENCEPIECE_FILE, FETCH).piece_size())
    return None


def convert_sentencepiece(model: Path, section: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a SentencePiece tokenizer from the same pieces and scores, or merges.

    What differs: a path through the text that ties with another in float32 scores may be
    broken the other way (unigram), and after a special piece text begins anew, with the dummy
    prefix, as it does in training, where each document is encoded by itself.

    Raises:
        RecipeError: a normalization rule that has no equal in ``tokenizers``.
    """
    rule = section["normalization_rule_name"]
    if rule not in _NORMALIZERS or section["remove_extra_whitespaces"]:
        given = f"{rule!r}, remove_extra_whitespaces {section['remove_extra_whitespaces']}"
        problem = f"{given}, cannot be converted exactly"
        remedy = "nfkc and identity can, with remove_extra_whitespaces=false"
        raise RecipeError("tokenizer.normalization_rule_name", problem, remedy)
    processor = open_pieces(model, FETCH)
    # The pieces that are taken from a text whole come after the unknown one.
    roles = section["special_pieces"]
    special = [*dict.fromkeys(roles[role] for role in ("bos", "eos", "pad", "eod"))]
    learnt = 1 + len(special) + roles["num_placeholders"]
    engine = Tokenizer(_model_of(processor, section, learnt))
    prefix = [normalizers.Prepend(UNDERLINE)] if section["add_dummy_prefix"] else []
    steps = [*_NORMALIZERS[rule], *prefix, normalizers.Replace(" ", UNDERLINE)]
    engine.normalizer = normalizers.Sequence(steps)
    # Text may spell the piece of a byte, a control piece or the unknown one: it is none.
    controls = [processor.id_to_piece(i) for i in range(1, learnt) if processor.is_control(i)]
    ends = "|".join([r"0x[0-9A-F]{2}>", "unk>", *(re.escape(piece[1:]) for piece in controls)])
    engine.pre_tokenizer = Split(Regex(f"<(?={ends})"), behavior="isolated")
    strip = [decoders.Strip(" ", 1, 0)] if section["add_dummy_prefix"] else []
    engine.decoder = decoders.Sequence([
        *(decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip)
    ])
    whole = (processor.id_to_piece(index) for index in range(1, learnt))
    engine.add_tokens([
        AddedToken(piece, normalized=False, special=piece in special) for piece in whole
    ])
    return engine


def _model_of(
    processor: SentencePieceProcessor, section: Mapping[str, Any], learnt: int
) -> models.Model:
    """Choose pieces by likelihood, or merge them; those from ``learnt`` on were learnt."""
    unknown, fallback = processor.unk_id(), section["byte_fallback"]
    if section.get("model_type") != "bpe":
        pieces = _scored_pieces(processor)
        return models.Unigram(pieces, unk_id=unknown, byte_fallback=fallback)
    ids = {processor.id_to_piece(index): index for index in range(processor.piece_size())}
    order = {
        piece: index
        for piece, index in ids.items()
        if index >= learnt and not processor.is_byte(index)
    }
    # Two neighbours are merged if what they make is a piece; pieces of low ids come first.
    merges = [
        (piece[:end], piece[end:])
        for piece in order
        for end in range(1, len(piece))
        if piece[:end] in order and piece[end:] in order
    ]
    name = processor.id_to_piece(unknown)
    # SentencePiece gives one unknown piece for characters in a row that are none.
    return models.BPE(ids, merges, unk_token=name, fuse_unk=True, byte_fallback=fallback)


def _scored_pieces(processor: SentencePieceProcessor) -> list[tuple[str, float]]:
    """List pieces with their scores.

    The lowest score sets the price of an unknown character. Pieces without a score of their
    own, all at 0, would win against any other: they get the lowest one, which keeps that price.
    """
    scores = [float(processor.get_score(index)) for index in range(processor.piece_size())]
    lowest = min(scores)
    return [
        (processor.id_to_piece(index), score if score < 0 else lowest)
        for index, score in enumerate(scores)
    ]


def _find_roles(engine: Tokenizer, section: Mapping[str, Any]) -> dict[str, str | None]:
    """Find the pieces that have a role; ``eos`` is what training put after each document.

    Training puts nothing before a document, so there is no ``bos``: programs that are given one
    put it before a prompt. A padding piece that is no added token has no role: ``transformers``
    would add it, and encode texts that spell it in another way than training did.
    """
    added = {token.content for token in engine.get_added_tokens_decoder().values()}
    eos = section.get("special_pieces", section)["eod"]
    return {
        "bos": None,
        "eos": eos,
        "pad": next((one for one in _PADDING if one in added), None),
    }
