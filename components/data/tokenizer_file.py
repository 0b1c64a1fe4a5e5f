"""Open tokenizer files from any source.

The libraries that read them are native code: a hostile file can make them abort, panic, loop
for hours or fill the memory, and Python cannot interrupt them. So a child process with limits
of time and memory opens each file first (`components.data.probe_tokenizer`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer as Engine

from components.child_process import python_environment
from components.errors import RecipeError
from components.json_file import read_bounded

MOST_BYTES = 1 << 28
WAIT_SECONDS = 300.0  # for a loaded machine; the child also limits its own processor time
PANIC = "PanicException"  # of pyo3: not an Exception, and no module exports it

_trusted = set[
    tuple[str, str]
]()  # suffix and SHA-256 of files that passed or were written here


def open_engine(file: Path, remedy: str) -> Engine:
    """Open ``tokenizer.json``.

    Raises:
        RecipeError: the file is not a tokenizer, or it takes too much time or memory.
    """
    return Engine.from_str(_read_checked(file, remedy).decode())


def open_pieces(file: Path, remedy: str) -> sentencepiece.SentencePieceProcessor:
    """Open a SentencePiece model.

    Raises:
        RecipeError: the file is not a model, or it takes too much time or memory.
    """
    return sentencepiece.SentencePieceProcessor(model_proto=_read_checked(file, remedy))


def trust(suffix: str, content: bytes) -> None:
    """Skip the child process for a file that this process writes itself."""
    _trusted.add((suffix, sha256(content).hexdigest()))


@contextmanager
def refuse_panics(file: Path | str) -> Iterator[None]:
    """Turn a panic of Rust code into an error that names the file.

    Raises:
        RecipeError: the code panicked.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        problem = f"is not a tokenizer that works: {' '.join(str(error).split())[:200]}"
        raise RecipeError(str(file), problem, "take another tokenizer") from None


def _read_checked(file: Path, remedy: str) -> bytes:
    try:
        content = read_bounded(file, MOST_BYTES)
        if (file.suffix, sha256(content).hexdigest()) not in _trusted:
            _probe(file.suffix, content)
    except ValueError as error:
        raise RecipeError(str(file), str(error), remedy) from None
    trust(file.suffix, content)
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
    limits = "opening it and encoding a line fails, takes too long or too much memory"
    raise ValueError(f"is not a {kind}: {reason or limits}")
