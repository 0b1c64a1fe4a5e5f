"""One measurement of `benchmarks.preparation.data_prep` in a new process.

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
from components.data.token_file import encode_to_file
from data_prep.near_duplicates import write_signatures


def run_measurement(kind: str, *words: str) -> dict[str, Any]:
    """Run one measurement in this process."""
    functions: dict[str, Callable[..., object]] = {
        "encode": _encode,
        "remove": _remove_duplicates,
        "memory": _measure_peak,
    }
    with tempfile.TemporaryDirectory() as name:
        start, before = time.perf_counter(), sum(os.times()[:4])  # also of ended children
        result = functions[kind](Path(name), *words)
        return {
            "seconds": time.perf_counter() - start,
            "processor_seconds": sum(os.times()[:4]) - before,
            "result": result,
        }


def _encode(folder: Path, tool: str, family: str, size: str, trained: str, *files: str) -> int:
    paths = [Path(file) for file in files]
    if tool == "datatrove":
        from benchmarks.preparation.data_prep_peer import encode_datatrove

        return encode_datatrove(paths[0].parent, Path(trained, "tokenizer.json"), folder)
    tokenizer = ours.DiskTokenizer(family, int(size), Path(trained))
    return ours.encode_files(tool, paths, tokenizer, folder)


def _remove_duplicates(folder: Path, tool: str, threshold: str, *words: str) -> list[list[int]]:
    bands, rows, *files = words
    paths = [Path(file) for file in files]
    if tool == "datatrove":
        from benchmarks.preparation.data_prep_peer import remove_datatrove

        return remove_datatrove(paths[0].parent, folder)
    value = threshold if threshold == "none" else float(threshold)
    settings = ours.duplicate_settings(value, int(bands), int(rows))
    return ours.remove_ours(paths, folder, settings)


def _measure_peak(
    folder: Path, kind: str, megabytes: str, family: str, pieces: str, trained: str, *files: str
) -> dict[str, int]:
    peaks: list[int] = []
    texts = _repeat_texts([Path(file) for file in files], int(megabytes) * 1_000_000, peaks)
    if kind == "signatures":
        settings = ours.duplicate_settings("none", ours.BANDS, ours.ROWS)
        documents = write_signatures(texts, folder / "a.npy", settings)
    else:
        tokenizer = ours.DiskTokenizer(family, int(pieces), Path(trained)).load()
        documents = encode_to_file(folder / "a.tokens", texts, tokenizer).documents
    return {"documents": documents, "peak_bytes": max(peaks)}


def _repeat_texts(files: Sequence[Path], size: int, peaks: list[int]) -> Iterator[str]:
    """Yield numbered copies of the texts up to a size; then record the peaks of memory."""
    copy = 0
    while size > 0:
        for text in ours.read_texts(files):
            yield f"{copy}\n{text}"
            size -= len(text.encode())
            if size <= 0:
                break
        copy += 1
    # The workers are still running; the usage of ended processes would count for their parent.
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    peaks += [resident_bytes("VmHWM", process) for process in ("self", *children)]


if __name__ == "__main__":
    print(json.dumps(run_measurement(*sys.argv[1:])))
