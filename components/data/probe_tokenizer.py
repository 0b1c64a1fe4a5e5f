"""Child process that checks a tokenizer file. Its argument is the file's suffix.

It reads the file's content from standard input and exits with 0 if the tokenizer opens and
encodes text within the limits. Otherwise it writes the reason to standard output and exits with
1, unless a limit kills it.
"""

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import sentencepiece
from tokenizers import Tokenizer as Engine

from components.data.byte_bpe import open_fast
from components.data.tokenizer_file import PROBES

MOST_SECONDS, MOST_MEMORY = 15, 8 << 30
MOST_GROWTH = 1000  # output characters or tokens per input character
PARTS = ("normalizer", "pre_tokenizer", "decoder")


def bound_growth(part: Any) -> float:
    """Return how many characters a part's replacements can make from one character, at most."""
    growth = 1.0
    for step in _find_steps(part):
        content, pattern = step.get("content"), step.get("pattern")
        if isinstance(content, str) and isinstance(pattern, dict):
            matched = len(str(pattern.get("String", "")))  # a Regex may match the empty string
            growth *= max(1.0, len(content) / matched if matched else len(content) + 1)
    return growth


def _find_steps(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        part = [*part.values()]
    if isinstance(part, list):
        for item in part:
            yield from _find_steps(item)


def _probe_json(content: str) -> None:
    tree = json.loads(content)
    growth = max(bound_growth(tree.get(part)) for part in PARTS)
    if growth > MOST_GROWTH:
        raise ValueError(f"its replacements can turn one character into {growth:.0f}")
    patterns = [step.get("pattern") for step in _find_steps(tree.get("normalizer"))]
    engine = Engine.from_str(content)
    open_fast(content, engine)
    for text in (*PROBES, str(patterns)):
        ids = engine.encode(text, add_special_tokens=False).ids
        if len(ids) > MOST_GROWTH * (len(text.encode()) + 1):
            raise ValueError(f"it encodes {len(text):,} characters as {len(ids):,} tokens")
        engine.decode(ids)


def _probe_pieces(content: bytes) -> None:
    if not content:
        raise ValueError("the file is empty")  # the library would accept it
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in PROBES:
        pieces.decode(pieces.encode(text))


def _main() -> None:
    limits = {resource.RLIMIT_CPU: MOST_SECONDS, resource.RLIMIT_AS: MOST_MEMORY}
    for kind, limit in {**limits, resource.RLIMIT_CORE: 0}.items():
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, hard))
    content = sys.stdin.buffer.read()
    try:
        if sys.argv[1] == ".json":
            _probe_json(content.decode())
        else:
            _probe_pieces(content)
    except BaseException as error:  # noqa: BLE001 (a Rust panic is not an Exception)
        sys.stdout.write(" ".join(str(error).split())[:300] or type(error).__name__)
        sys.exit(1)


if __name__ == "__main__":
    _main()
