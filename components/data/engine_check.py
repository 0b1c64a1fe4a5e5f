"""Check a ``tokenizer.json``: it encodes every text and neither loses nor adds text.

A tokenizer of a user may drop characters, cut texts short or end documents with a word of the
text. Training would not notice. A tokenizer trained here passes by design.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from components.errors import RecipeError

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
STEP = re.compile(r'"type":"(\w+)"')  # in the JSON of a part; quotes of a text are escaped
OTHER = "name a byte-level BPE that spells every text, or let one be trained"


def check_engine(file: str, engine: Engine) -> None:
    """Check ids, settings and steps, then that ``PROBES`` come back from their ids.

    Raises:
        RecipeError: the first property that training cannot use, or that changes texts.
    """
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
    kind = "a word that texts may contain" if eod in added else "a piece of ordinary text"
    remedy = "choose a special token such as <|endoftext|>: eos_token in "
    remedy += "tokenizer_config.json, tokenizer.eod in a recipe"
    raise RecipeError(file, f"its end of a document, {eod!r}, is {kind}", remedy)


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
            problem = f"has {key} switched on, which would change what is trained on"
            yield problem, f"call tokenizer.no_{key}() and save it again"
    if model.dropout:
        yield f"drops {model.dropout:g} of the merges at random", "set its dropout to null"
    yield from _id_problems(engine)
    changing = [name for name in names if name not in LOSSLESS]
    changing += ["Split"] * ('"behavior":"Removed"' in settings)
    for name in changing:
        yield f"has the step {name}, which changes or removes text", OTHER
    yield from _text_problems(engine)


def _id_problems(engine: Engine) -> Iterator[tuple[str, str]]:
    """Check that the ids are 0, 1, 2, ..., as the rows of the model."""
    pieces = sorted(engine.get_vocab().items(), key=lambda item: item[1])
    remedy = "give its pieces the ids 0, 1, 2 and so on, each once"
    for (left, low), (right, high) in pairwise([("", -1), *pieces]):
        if low == high:
            yield f"gives id {low:,} to both {left!r} and {right!r}", remedy
        elif high != low + 1:
            yield f"has ids with gaps: none from {low + 1:,} to {high - 1:,}", remedy


def _text_problems(engine: Engine) -> Iterator[tuple[str, str]]:
    """Find pieces that are missing or remove text, then encode ``PROBES``."""
    missing = [c for c in ByteLevel.alphabet() if engine.model.token_to_id(c) is None]
    if missing:
        yield f"has no piece for {len(missing)} of the 256 bytes and would drop them", OTHER
    for token in engine.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip:
            problem = f"has the piece {token.content!r}, which removes the spaces around it"
            yield problem, "set its lstrip and rstrip to false in added_tokens"
    prefix = len(spell(engine, "x")) - 1
    for text in PROBES:
        spelled = spell(engine, f"x{text}")[prefix + 1 :]
        if unicodedata.normalize("NFKD", spelled) != unicodedata.normalize("NFKD", text):
            yield f"encodes {text[:20]!r} as {spelled[:20]!r}", OTHER


def spell(engine: Engine, text: str) -> str:
    """Encode a text and join the texts of its pieces."""
    added = engine.get_added_tokens_decoder()
    pieces = []
    for index in engine.encode(text, add_special_tokens=False).ids:
        if index in added:
            pieces.append(BYTES.pre_tokenize_str(added[index].content)[0][0])
        else:
            pieces.append(str(engine.id_to_token(index)))
    return str(decoders.ByteLevel().decode(pieces))
