"""Export a run's tokenizer as files that ``AutoTokenizer`` loads without remote code."""

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
FETCH = "download or write the folder again"
UNDERLINE = "\u2581"  # SentencePiece's mark for a space

_NORMALIZERS = {"nfkc": [normalizers.NFKC()], "identity": []}
# Spellings of padding pieces. The recipe names the end of a document.
_PADDING = ("<pad>", "<|padding|>")


def write_tokenizer(
    source: Path, section: Mapping[str, Any], target: Path, *, context_tokens: int
) -> dict[str, int | None]:
    """Write the tokenizer of ``source`` and return its role ids, or raise a RecipeError."""
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
        problem = f"has neither {SENTENCEPIECE_FILE} nor {FILE}"
        alone = "for token files, set data.tokenizer_folder=FOLDER"
        remedy = f"prepare the run's data again with action=prepare; {alone}"
        raise RecipeError(str(source), problem, remedy)
    roles = _find_roles(engine, section)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": piece for role, piece in roles.items()},
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,  # training adds nothing before a document
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
    """Return whether the engine's default call returns only the ids of the text.

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
    """Convert a SentencePiece tokenizer with the same pieces and scores, or merges.

    Two things differ. Ties between segmentations in float32 scores may be resolved differently
    (unigram). After a special piece, text starts again with the dummy prefix, as in training,
    where each document is encoded by itself.
    """
    rule = section["normalization_rule_name"]
    if rule not in _NORMALIZERS or section["remove_extra_whitespaces"]:
        settings = f"{rule!r}, remove_extra_whitespaces {section['remove_extra_whitespaces']}"
        problem = f"{settings} cannot be converted exactly"
        remedy = "use nfkc or identity, with remove_extra_whitespaces=false"
        raise RecipeError("tokenizer.normalization_rule_name", problem, remedy)
    processor = open_pieces(model, FETCH)
    # Pieces that are matched as a whole come after the unknown piece.
    roles = section["special_pieces"]
    special = [*dict.fromkeys(roles[role] for role in ("bos", "eos", "pad", "eod"))]
    learnt = 1 + len(special) + roles["num_placeholders"]
    engine = Tokenizer(_model_of(processor, section, learnt))
    prefix = [normalizers.Prepend(UNDERLINE)] if section["add_dummy_prefix"] else []
    steps = [*_NORMALIZERS[rule], *prefix, normalizers.Replace(" ", UNDERLINE)]
    engine.normalizer = normalizers.Sequence(steps)
    # Text that spells a byte piece, a control piece or the unknown piece is plain text.
    controls = [processor.id_to_piece(i) for i in range(1, learnt) if processor.is_control(i)]
    ends = "|".join([r"0x[0-9A-F]{2}>", "unk>", *(re.escape(piece[1:]) for piece in controls)])
    engine.pre_tokenizer = Split(Regex(f"<(?={ends})"), behavior="isolated")
    strip = [decoders.Strip(" ", 1, 0)] if section["add_dummy_prefix"] else []
    engine.decoder = decoders.Sequence([
        *(decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip)
    ])
    pieces = (processor.id_to_piece(index) for index in range(1, learnt))
    engine.add_tokens([
        AddedToken(piece, normalized=False, special=piece in special) for piece in pieces
    ])
    return engine


def _model_of(
    processor: SentencePieceProcessor, section: Mapping[str, Any], learnt: int
) -> models.Model:
    """Return a unigram or BPE model. Pieces from id ``learnt`` on were learned."""
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
    # Two neighbors are merged if the result is a piece; pieces with low ids come first.
    merges = [
        (piece[:end], piece[end:])
        for piece in order
        for end in range(1, len(piece))
        if piece[:end] in order and piece[end:] in order
    ]
    name = processor.id_to_piece(unknown)
    # SentencePiece returns one unknown piece for a sequence of unknown characters.
    return models.BPE(ids, merges, unk_token=name, fuse_unk=True, byte_fallback=fallback)


def _scored_pieces(processor: SentencePieceProcessor) -> list[tuple[str, float]]:
    """Return pieces with their scores.

    The lowest score determines the cost of an unknown character. Pieces without a score have
    0 and would win against all others. They get the lowest score, which keeps that cost.
    """
    scores = [float(processor.get_score(index)) for index in range(processor.piece_size())]
    lowest = min(scores)
    return [
        (processor.id_to_piece(index), score if score < 0 else lowest)
        for index, score in enumerate(scores)
    ]


def _find_roles(engine: Tokenizer, section: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the pieces with a role. ``eos`` is the piece after each training document.

    Training adds nothing before a document, so there is no ``bos``: programs would put it
    before a prompt. A padding piece that is not an added token has no role: ``transformers``
    would add it and encode text that spells it differently than training did.
    """
    added = {token.content for token in engine.get_added_tokens_decoder().values()}
    eos = section.get("special_pieces", section)["eod"]
    return {
        "bos": None,
        "eos": eos,
        "pad": next((piece for piece in _PADDING if piece in added), None),
    }
