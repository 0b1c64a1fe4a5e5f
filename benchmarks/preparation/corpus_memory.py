"""How much memory does the preparation of a growing corpus need?

The corpus is repeated real text (see `real_text`). Each copy contains a word that the other
copies do not have, so that few documents are duplicates. The text is normalised, deduplicated
(exact and near duplicates) and tokenised; the tokenizer is trained on a sample of 5 MB. The
measurement is the peak of resident memory of the command and of any worker. Other programs on
the machine do not change it.

    python -m benchmarks.preparation.corpus_memory recipe=NAME FOLDER [MEGABYTES ...]
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.entry import run_script
from benchmarks.machine import resident_bytes
from benchmarks.preparation.real_text import real_text
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.results_store import ROOT

SIZES = (200, 1_000, 4_000)
FILE_BYTES = 100_000_000
LINE = re.compile(r"(\S+) (\S+)")
SETTINGS = (
    "cluster=local",
    "action=prepare",
    "preparation=plain",
    "data.preparation.workers=2",
    "data.preparation.shard_bytes=33_554_432",
    "data.preparation.exact_duplicates={unit: document}",
    "data.preparation.near_duplicates={ngram: 5, bands: 14, rows: 8, threshold: none, seed: 0}",
    "data.tokenizer_sample_bytes=5_000_000",
    "data.verify=sizes",
)
SAMPLE_SECONDS = 0.2
# Pages of mapped files count as resident, but the kernel can reclaim them.
KINDS = {"VmHWM": "bytes", "RssAnon": "anonymous_bytes"}


def main(words: Sequence[str]) -> int:
    """Measure each size, and save and print the result."""
    recipe, folder, sizes = words[0], Path(words[1]), [*map(int, words[2:])] or SIZES
    os.environ["OMP_NUM_THREADS"] = "1"
    files = real_text(folder)
    settings = [recipe, *SETTINGS]
    corpora = []
    for megabytes in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            corpus = Path(name) / "corpus"
            size = _write_corpus(files, corpus, megabytes * 1_000_000)
            figures = _measure_preparation(corpus, Path(name) / "prepared", settings)
        corpora.append({"megabytes": size / 1e6, **figures})
    shape = {"settings": settings, "megabytes": sizes, "sampled_seconds": SAMPLE_SECONDS}
    return save_benchmark("corpus_memory", shape, {"corpora": corpora}, ratios_of(corpora))


def ratios_of(corpora: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Return the peak memory at each size."""
    return [
        Ratio(
            f"{corpus['megabytes']:,.0f} MB of text, {process}{pages}",
            "smaller corpora",
            corpus[f"{process}_{kind}"] / 1e6,
            unit="MB",
        )
        for corpus in corpora
        for process in ("command", "worker")
        for kind, pages in (("bytes", ""), ("anonymous_bytes", ", its own pages"))
    ]


def _write_corpus(files: Sequence[Path], corpus: Path, size: int) -> int:
    """Write files of JSON lines with ``size`` bytes in total; return the bytes written."""
    corpus.mkdir()
    lines = _repeat_lines(files)
    written = number = 0
    while written < size:
        with (corpus / f"{number:04d}.jsonl").open("wb") as file:
            while file.tell() < FILE_BYTES and written + file.tell() < size:
                file.write(next(lines))
            written += file.tell()
        number += 1
    return written


def _repeat_lines(files: Sequence[Path]) -> Iterator[bytes]:
    for copy in count():
        # A number in letters, because the near-duplicate search ignores digits.
        word = "w" + "".join(chr(ord("a") + int(digit)) for digit in str(copy))
        for path in files:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    text = LINE.sub(rf"\1 {word} \2", json.loads(line)["text"])
                    yield json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"


def _measure_preparation(corpus: Path, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    words = [
        *settings,
        f"data.sources={{mix: {{files: ['{corpus}/*.jsonl'], language: en}}}}",
        "data.shares={mix: 1.0}",
        f"data.folder={folder}",
    ]
    start = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "run.py", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peaks = dict.fromkeys(
        (f"{role}_{kind}" for role in ("command", "worker") for kind in KINDS.values()), 0
    )
    sampler = threading.Thread(target=_sample_memory, args=(command, peaks), daemon=True)
    sampler.start()
    out, err = command.communicate()
    assert command.returncode == 0, err[-2_000:]
    sampler.join()
    return {
        **peaks,
        "seconds": time.perf_counter() - start,
        "stages": [line.rstrip() for line in out.splitlines()[1:-1]],
    }


def _sample_memory(command: "subprocess.Popen[str]", peaks: dict[str, int]) -> None:
    """Record the kernel's high-water marks, and samples of anonymous memory."""
    while command.poll() is None:
        for process in _descendants(command.pid):
            role = "command" if process == command.pid else "worker"
            for field, kind in KINDS.items():
                try:
                    num_bytes = resident_bytes(field, str(process))
                except (OSError, KeyError):
                    break  # the process has ended
                peaks[f"{role}_{kind}"] = max(peaks[f"{role}_{kind}"], num_bytes)
        time.sleep(SAMPLE_SECONDS)


def _descendants(parent: int) -> Iterator[int]:
    yield parent
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _descendants(int(child))


if __name__ == "__main__":
    run_script(main, min_words=2)
