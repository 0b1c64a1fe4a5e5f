"""One measurement of `benchmarks.preparation.data_prep`, in a process of its own.

python -m benchmarks.preparation.data_prep_measure encode|remove|memory ARGUMENT ...
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import resident_bytes
from benchmarks.preparation import data_prep_ours as ours
from components.data.token_file import encode
from data_prep.near_duplicates import write_signatures


def measure(kind: str, *words: str) -> dict[str, Any]:
    """Take one measurement in this process."""
    ways: dict[str, Callable[..., object]] = {
        "encode": _encode,
        "remove": _remove,
        "memory": _peak,
    }
    with tempfile.TemporaryDirectory() as name:
        wall, processing = time.perf_counter(), _processor_seconds()
        result = ways[kind](Path(name), *words)
        return {
            "seconds": time.perf_counter() - wall,
            "processor_seconds": _processor_seconds() - processing,
            "result": result,
        }


def _processor_seconds() -> float:
    """Add up what this process has used, and its children that have ended."""
    return sum(os.times()[:4])


def _encode(folder: Path, way: str, family: str, pieces: str, trained: str, *files: str) -> int:
    paths = [Path(file) for file in files]
    if way == "datatrove":
        from benchmarks.preparation.data_prep_peer import encode_datatrove

        return encode_datatrove(paths[0].parent, Path(trained, "tokenizer.json"), folder)
    tokenizer = ours.DiskTokenizer(family, int(pieces), Path(trained))
    if way == "bare":
        return ours.encode_bare(paths, tokenizer)
    if way == "tokenizers":
        return ours.encode_engine(paths, tokenizer)
    return ours.encode_ours(paths, tokenizer, folder)


def _remove(folder: Path, way: str, threshold: str, *words: str) -> list[list[int]]:
    bands, rows, *files = words
    paths = [Path(file) for file in files]
    if way == "datatrove":
        from benchmarks.preparation.data_prep_peer import remove_datatrove

        return remove_datatrove(paths[0].parent, folder)
    value = threshold if threshold == "none" else float(threshold)
    return ours.remove_ours(paths, folder, ours.settings_of(value, int(bands), int(rows)))


def _peak(
    folder: Path, kind: str, megabytes: str, family: str, pieces: str, trained: str, *files: str
) -> dict[str, int]:
    peaks: list[int] = []
    texts = _repeated([Path(file) for file in files], int(megabytes) * 1_000_000, peaks)
    if kind == "signatures":
        settings = ours.settings_of("none", ours.BANDS, ours.ROWS)
        documents = write_signatures(texts, folder / "a.npy", settings)
    else:
        tokenizer = ours.DiskTokenizer(family, int(pieces), Path(trained)).load()
        documents = encode(folder / "a.tokens", texts, tokenizer).documents
    return {"documents": documents, "peak_bytes": max(peaks)}


def _repeated(files: Sequence[Path], size: int, peaks: list[int]) -> Iterator[str]:
    """Read the texts again and again, each time under another number; then note the memory."""
    copy = 0
    while size > 0:
        for text in ours.texts_of(files):
            yield f"{copy}\n{text}"
            size -= len(text.encode())
            if size <= 0:
                break
        copy += 1
    # The workers still live then. What the system says of ended ones counts in their parent.
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    peaks += [resident_bytes("VmHWM", process) for process in ("self", *children)]


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
