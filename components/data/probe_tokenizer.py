"""The child process that opens a tokenizer file first; the argument is the file's suffix.

The file comes on standard input. Status 0 means that it can be opened and encodes lines of text
within the limits. Else the reason is on standard output, unless the process was killed.
"""

import json
import math
import resource
import sys
from collections.abc import Iterator
from typing import Any

import sentencepiece
from tokenizers import Tokenizer as Engine

from components.data.byte_bpe import open_fast
from components.data.engine_check import PROBES

MOST_SECONDS, MOST_MEMORY = 15, 8 << 30
MOST_GROWTH = 1000  # characters made of one, by all replacements together
PARTS = ("normalizer", "pre_tokenizer", "decoder")


def growth_of(part: Any) -> float:
    """Return how many characters the replacements of a part can make of one character."""
    factors = [1.0]
    for step in _steps(part):
        content, pattern = step.get("content"), step.get("pattern")
        if isinstance(content, str) and isinstance(pattern, dict):
            matched = len(str(pattern.get("String", "")))  # a Regex may match nothing
            factors.append(max(1.0, len(content) / matched if matched else len(content) + 1))
    return math.prod(factors)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    waiting = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
        if isinstance(node, dict | list):
            waiting += node.values() if isinstance(node, dict) else node


def _probe_json(content: str) -> None:
    tree = json.loads(content)
    growth = max(growth_of(tree.get(part)) for part in PARTS)
    if growth > MOST_GROWTH:
        raise ValueError(f"its replacements can make {growth:.0f} characters of one")
    steps = (step.get("pattern") for step in _steps(tree.get("normalizer")))
    patterns = [str(list(one.values())) for one in steps if isinstance(one, dict)]
    engine = Engine.from_str(content)
    open_fast(content, engine)
    for text in (*PROBES, " ".join(patterns)):
        ids = engine.encode(text, add_special_tokens=False).ids
        if len(ids) > MOST_GROWTH * (len(text.encode()) + 1):
            raise ValueError(f"it makes {len(ids):,} tokens of {len(text):,} characters")
        engine.decode(ids)


def _probe_pieces(content: bytes) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in PROBES:
        pieces.decode(pieces.encode(text))


def _main() -> None:
    for limit, most in (
        (resource.RLIMIT_CPU, MOST_SECONDS),
        (resource.RLIMIT_AS, MOST_MEMORY),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, hard))
    content = sys.stdin.buffer.read()
    try:
        if sys.argv[1] == ".json":
            _probe_json(content.decode())
        elif content:
            _probe_pieces(content)
    except BaseException as error:  # noqa: BLE001 (a panic of Rust is no Exception)
        sys.stdout.write(" ".join(str(error).split())[:300] or type(error).__name__)
        sys.exit(1)


if __name__ == "__main__":
    _main()
