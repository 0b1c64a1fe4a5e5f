"""Checks of tokenizer files from any source.

The libraries that read these files are native code. A hostile file can make them abort, panic,
loop for hours or fill the memory, and Python cannot interrupt them. So a child process with
limits on time and memory opens each file first (`components.data.probe_tokenizer`).

A user's tokenizer may also drop characters, truncate texts or use an ordinary word as the end
of a document, and training would not notice. So a ``tokenizer.json`` must encode every text and
neither lose nor add text. A tokenizer trained here passes by design.
"""

import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from components.child_process import python_environment
from components.errors import RecipeError
from components.json_file import read_bounded

MOST_BYTES = 1 << 28
WAIT_SECONDS = 300.0  # enough on a busy machine; the child also limits its CPU time
PANIC = "PanicException"  # of pyo3; it is not an Exception, and no module exports it

_trusted = set[
    tuple[str, str]
]()  # suffix and SHA-256 of files that passed or were written here


def open_engine(file: Path, remedy: str) -> Engine:
    """Open ``tokenizer.json``; RecipeError if invalid, or too slow or large to open."""
    return Engine.from_str(_read_checked(file, remedy).decode())


def open_pieces(file: Path, remedy: str) -> sentencepiece.SentencePieceProcessor:
    """Open a SentencePiece model; RecipeError if invalid, or too slow or large to open."""
    return sentencepiece.SentencePieceProcessor(model_proto=_read_checked(file, remedy))


def mark_checked(suffix: str, content: bytes) -> None:
    """Mark content that this process writes itself as checked, to skip the child process."""
    _trusted.add((suffix, sha256(content).hexdigest()))


@contextmanager
def refuse_panics(file: Path | str) -> Iterator[None]:
    """Turn a Rust panic into a RecipeError that names the file."""
    try:
        yield
    except BaseException as error:  # a Rust panic is not an Exception
        if type(error).__name__ != PANIC:
            raise
        problem = f"is not a working tokenizer: {' '.join(str(error).split())[:200]}"
        raise RecipeError(str(file), problem, "use another tokenizer") from None


def _read_checked(file: Path, remedy: str) -> bytes:
    try:
        content = read_bounded(file, MOST_BYTES)
        if (file.suffix, sha256(content).hexdigest()) not in _trusted:
            _probe(file.suffix, content)
    except ValueError as error:
        raise RecipeError(str(file), str(error), remedy) from None
    mark_checked(file.suffix, content)
    return content


def _probe(suffix: str, content: bytes) -> None:
    command = [sys.executable, "-m", "components.data.probe_tokenizer", suffix]
    environment = python_environment(os.environ | {"RAYON_NUM_THREADS": "1"})
    reason = ""
    with suppress(subprocess.TimeoutExpired):
        child = subprocess.run(
            command, input=content, env=environment, capture_output=True, timeout=WAIT_SECONDS
        )
        if child.returncode == 0:
            return
        reason = child.stdout.decode(errors="replace").strip()
    kind = "tokenizer" if suffix == ".json" else "SentencePiece model"
    limits = "opening it and encoding a line fails, or needs too much time or memory"
    raise ValueError(f"is not a {kind}: {reason or limits}")


LOSSLESS = {
    *("NFC", "NFD", "NFKC", "NFKD", "Prepend"),  # up to Unicode's equivalence
    *("ByteLevel", "Split", "Digits", "Punctuation", "UnicodeScripts", "FixedLength"),
}
# Texts that tokenizers treat differently.
PROBES = (
    "I'll say they'd 'VE it's, don't\u2019t; x\u0301e\u0301 \u00e9 \u2126\u212b \ufb01",
    "  two   three\ttab \r\n\r\n \n end \u00a0 \x85 \u2028 \u3000 ",
    "nul\x00 \x1c \x1f \x7f bom\ufeff \u200b \u200d \ufffd \uffff \U0010ffff",
    "12 3456 \u0661\u0662 \u096a \u00b2\u00bd \u2167 a1b22 1,000.50%",
    "a(b|c)d.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c x ,. y __init__(self) -> {}; //",
    "\u0395\u03bb\u03bb \u0420\u0443\u0441 \u05e2\u05d1\u05e8 \u0639\u0631\u0628\u064a\u0651",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u6f22\u5b57\u304b\u306a \u30ab\u30bf\u30ca",
    "\ud55c\uad6d \u1100\u1161\u11a8 \u0e44\u0e17\u0e22 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd \U00020000 " + "word" * 500 + " " * 70 + "\n" * 70,
)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
STEP = re.compile(r'"type":"(\w+)"')  # in a part's JSON, where quotes inside texts are escaped
OTHER = "use a byte-level BPE that can encode every text, or train a tokenizer"


def check_engine(file: str, engine: Engine) -> None:
    """Check ids, settings and steps, and that decoding the ids of ``PROBES`` restores them."""
    for problem, remedy in _problems(engine):
        raise RecipeError(file, problem, remedy)


def check_end(file: str, engine: Engine, eod: str) -> None:
    """Raise a RecipeError if ``eod`` is an ordinary piece or a word that texts contain."""
    added = {token.content for token in engine.get_added_tokens_decoder().values()}
    kinds = [unicodedata.category(character)[0] for character in eod]
    # Text rarely has a word between two symbols: <|endoftext|>, </s>, [EOS].
    is_rare = "L" in kinds and {kinds[0], kinds[-1]} <= {"P", "S"} and not {*kinds} & {"Z", "C"}
    if eod in added and is_rare:
        return
    kind = "an added word, not a special token" if eod in added else "a piece of ordinary text"
    remedy = "choose a special token such as <|endoftext|>: eos_token in "
    remedy += "tokenizer_config.json, tokenizer.eod in a recipe"
    raise RecipeError(file, f"its end-of-document token {eod!r} is {kind}", remedy)


def _problems(engine: Engine) -> Iterator[tuple[str, str]]:
    parts, model = (engine.normalizer, engine.pre_tokenizer), engine.model
    settings = "".join(part.__getstate__().decode() for part in parts if part is not None)
    names = [name for name in STEP.findall(settings) if name != "Sequence"]
    if not isinstance(model, models.BPE) or "ByteLevel" not in names:
        kind = f"{type(model).__name__} by {', '.join(names) or 'no steps'}"
        yield f"is {kind}, not byte-level BPE", OTHER
        return
    for key in ("truncation", "padding"):
        if getattr(engine, key) is not None:
            problem = f"has {key} enabled, which would change the training text"
            yield problem, f"call tokenizer.no_{key}() and save it again"
    if model.dropout:
        yield f"drops {model.dropout:g} of the merges at random", "set its dropout to null"
    yield from _id_problems(engine)
    changing = [name for name in names if name not in LOSSLESS]
    changing += ["Split"] * ('"behavior":"Removed"' in settings)
    for name in changing:
        yield f"has the step {name}, which can change or remove text", OTHER
    yield from _text_problems(engine)


def _id_problems(engine: Engine) -> Iterator[tuple[str, str]]:
    """Check that the ids are 0, 1, 2, ..., like the rows of the embedding."""
    pieces = sorted(engine.get_vocab().items(), key=lambda item: item[1])
    remedy = "number its pieces 0, 1, 2 and so on, each id once"
    for (left, low), (right, high) in pairwise([("", -1), *pieces]):
        if low == high:
            yield f"has id {low:,} for both {left!r} and {right!r}", remedy
        elif high != low + 1:
            yield f"has a gap in its ids, from {low + 1:,} to {high - 1:,}", remedy


def _text_problems(engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield problems with missing bytes, with pieces that remove text, and with ``PROBES``."""
    missing = [c for c in ByteLevel.alphabet() if engine.model.token_to_id(c) is None]
    if missing:
        yield f"has no piece for {len(missing)} of the 256 bytes, and would drop them", OTHER
    for token in engine.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip:
            problem = f"has the piece {token.content!r}, which removes the spaces around it"
            yield problem, "set its lstrip and rstrip to false in added_tokens"
    prefix = len(decode_pieces(engine, "x")) - 1
    for text in PROBES:
        spelled = decode_pieces(engine, f"x{text}")[prefix + 1 :]
        if unicodedata.normalize("NFKD", spelled) != unicodedata.normalize("NFKD", text):
            yield f"encodes {text[:20]!r} as {spelled[:20]!r}", OTHER


def decode_pieces(engine: Engine, text: str) -> str:
    """Encode a text and decode its pieces."""
    added = engine.get_added_tokens_decoder()
    pieces = []
    for index in engine.encode(text, add_special_tokens=False).ids:
        if index in added:
            pieces.append(BYTES.pre_tokenize_str(added[index].content)[0][0])
        else:
            pieces.append(str(engine.id_to_token(index)))
    return str(decoders.ByteLevel().decode(pieces))
