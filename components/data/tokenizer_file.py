"""Open tokenizer files that anybody may have written.

The libraries behind them are native code: a hostile file can make them abort, panic, loop for
hours or fill the memory, and Python cannot interrupt them. So a file is first opened in a child
process with limits of time and memory (`components.data.probe_tokenizer`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer as Engine

from components.child_process import python_environment
from components.errors import RecipeError
from components.json_file import open_regular

MOST_BYTES = 1 << 28
WAIT_SECONDS = 300.0  # of a loaded machine; the child limits its own processor time
PANIC = "PanicException"  # of pyo3: no Exception, and no module has it

_probed = set[str]()  # hashes of the files that passed


def open_engine(file: Path, remedy: str) -> Engine:
    """Open ``tokenizer.json``.

    Raises:
        RecipeError: the file is not a tokenizer, or it takes too long or too much memory.
    """
    content = _read_probed(file, remedy)
    try:
        with panics_refused(file):
            return Engine.from_str(content.decode())
    except RecipeError:
        raise
    except Exception as error:  # the library raises nothing more special
        raise RecipeError(str(file), f"{_not_one(file)}: {error}", remedy) from error


def open_pieces(file: Path, remedy: str) -> sentencepiece.SentencePieceProcessor:
    """Open a SentencePiece model.

    Raises:
        RecipeError: the file is not one, or it takes too long or too much memory.
    """
    content = _read_probed(file, remedy)
    try:
        # An empty model would load, and only complain on standard error.
        if content:
            return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError:
        pass
    raise RecipeError(str(file), _not_one(file), remedy)


def trust(content: bytes) -> None:
    """Skip the child process for a file that this process has written itself."""
    _probed.add(sha256(content).hexdigest())


@contextmanager
def panics_refused(file: Path | str) -> Iterator[None]:
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


def _read_probed(file: Path, remedy: str) -> bytes:
    try:
        with open_regular(file) as stream:
            content = stream.read(MOST_BYTES + 1)
    except ValueError as error:
        raise RecipeError(str(file), str(error), remedy) from None
    if len(content) > MOST_BYTES:
        raise RecipeError(str(file), f"is larger than {MOST_BYTES >> 20} MiB", remedy)
    digest = sha256(content).hexdigest()
    if digest not in _probed:
        _probe(file, content, remedy)
        _probed.add(digest)
    return content


def _probe(file: Path, content: bytes, remedy: str) -> None:
    command = [sys.executable, "-m", "components.data.probe_tokenizer", file.suffix]
    environment = python_environment(os.environ | {"RAYON_NUM_THREADS": "1"})
    try:
        child = subprocess.run(
            command, input=content, env=environment, capture_output=True, timeout=WAIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        status, reason = 1, ""
    else:
        status, reason = child.returncode, child.stdout.decode(errors="replace").strip()
    if status:
        limits = "opening it and encoding a line fails, takes too long or too much memory"
        raise RecipeError(str(file), f"{_not_one(file)}: {reason or limits}", remedy)


def _not_one(file: Path) -> str:
    return f"is not a {'tokenizer' if file.suffix == '.json' else 'SentencePiece model'}"
