"""The ids of `tokenizers`, found some ten times sooner: fastokens, where it agrees.

`tokenizers` trains and decides what the ids are. fastokens reads the same file and is used if
it gives the same ids for texts of what tokenizers are known to differ in.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Engine

from components.data.tokenizer import Ids

try:
    import fastokens
except ImportError:  # a machine without a wheel: all is the same, but slower
    fastokens = None

Encode = Callable[[list[str]], list[Ids]]

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


def open_fast(tokenizer_json: str, engine: Engine) -> Encode | None:
    """Read a tokenizer that ``engine`` has read; nothing where its ids would not be the same.

    ``RAYON_NUM_THREADS`` bounds the threads that share the texts of a call.
    """
    if fastokens is None:
        return None
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer_json)
    except Exception:  # noqa: BLE001  # it names no error of its own for what it does not know
        return None

    def encode(texts: list[str]) -> list[Ids]:
        joined, offsets = fast.encode_batch_flat(texts, add_special_tokens=False)
        ids = np.frombuffer(joined, "<u4").astype(np.int32)
        return [ids[start:end] for start, end in pairwise(np.frombuffer(offsets, "<u8"))]

    probes = list(_probes(engine))
    expected = engine.encode_batch_fast(probes, add_special_tokens=False)
    agreed = zip(encode(probes), expected, strict=True)
    return encode if all(ids.tolist() == one.ids for ids, one in agreed) else None


def _probes(engine: Engine) -> Iterator[str]:
    yield from ("", *PROBES)
    added: dict[int, Any] = engine.get_added_tokens_decoder()
    for piece in added.values():
        yield f"{piece.content} a{piece.content}{piece.content}b {piece.content}\n"
