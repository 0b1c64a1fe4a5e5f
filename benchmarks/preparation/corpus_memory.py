"""How much memory does preparing a corpus take as the corpus grows?

The corpus is real text (see `real_text`), over and over, each copy with a word of
its own between others, so that few documents are duplicates. The text is normalised, freed of
exact and near duplicates and tokenised; the tokenizer is trained on a sample of 5 MB. What is
measured is the highest resident memory of the command and of any of its workers, which other
programs on the machine do not change.

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
from pathlib import Path
from typing import Any

from benchmarks.entry import enter
from benchmarks.kept import ROOT, circumstances
from benchmarks.machine import resident_bytes
from benchmarks.preparation.real_text import real_text
from benchmarks.ratios import Ratio, keep_result

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
# Pages of mapped files count as resident, but the kernel takes them back when it needs them.
KINDS = {"VmHWM": "bytes", "RssAnon": "anonymous_bytes"}


def main(words: Sequence[str]) -> int:
    """Measure, keep, show."""
    recipe, folder, sizes = words[0], Path(words[1]), [*map(int, words[2:])] or SIZES
    os.environ["OMP_NUM_THREADS"] = "1"
    files = real_text(folder)
    settings = [recipe, *SETTINGS]
    corpora = []
    for megabytes in sizes:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            corpus = Path(name) / "corpus"
            written = _write(files, corpus, megabytes * 1_000_000)
            one = _prepare(corpus, Path(name) / "prepared", settings)
        corpora.append({"megabytes": written / 1e6, **one})
    context = circumstances(
        peer="none: smaller corpora",
        convention="highest resident memory of the command and of any one worker, as the "
        "kernel counts it; anonymous is what belongs to no file, sampled",
        shape={"settings": settings, "megabytes": sizes, "sampled_seconds": SAMPLE_SECONDS},
        packages=("datatrove", "rensa", "sentencepiece", "tokenizers"),
    )
    return keep_result("corpus_memory", context | {"corpora": corpora}, ratios_of(corpora))


def ratios_of(corpora: Sequence[dict[str, Any]]) -> list[Ratio]:
    """Take the memory at each size."""
    return [
        Ratio(
            f"{corpus['megabytes']:,.0f} MB of text, {who}{pages}",
            "smaller corpora",
            corpus[f"{who}_{kind}"] / 1e6,
            unit="MB",
        )
        for corpus in corpora
        for who in ("command", "worker")
        for kind, pages in (("bytes", ""), ("anonymous_bytes", ", its own pages"))
    ]


def _write(files: Sequence[Path], corpus: Path, size: int) -> int:
    """Write files of JSON lines until there are ``size`` bytes of them."""
    corpus.mkdir()
    lines = _copies(files)
    written = number = 0
    while written < size:
        with (corpus / f"{number:04d}.jsonl").open("wb") as file:
            while file.tell() < FILE_BYTES and written + file.tell() < size:
                file.write(next(lines))
            written += file.tell()
        number += 1
    return written


def _copies(files: Sequence[Path]) -> Iterator[bytes]:
    copy = 0
    while True:
        for path in files:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    text = LINE.sub(rf"\1 {_word(copy)} \2", json.loads(line)["text"])
                    yield json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
        copy += 1


def _word(number: int) -> str:
    """Spell a number in letters: digits are all alike to the search for near duplicates."""
    return "w" + "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _prepare(corpus: Path, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
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
        (f"{who}_{kind}" for who in ("command", "worker") for kind in KINDS.values()), 0
    )
    watcher = threading.Thread(target=_watch, args=(command, peaks), daemon=True)
    watcher.start()
    out, err = command.communicate()
    assert command.returncode == 0, err[-2_000:]
    watcher.join()
    return {
        **peaks,
        "seconds": time.perf_counter() - start,
        "stages": [line.rstrip() for line in out.splitlines()[1:-1]],
    }


def _watch(command: "subprocess.Popen[str]", peaks: dict[str, int]) -> None:
    """Take the high-water marks, which the kernel keeps, and samples of what is no file's."""
    while command.poll() is None:
        for process in _family(command.pid):
            who = "command" if process == command.pid else "worker"
            for field, kind in KINDS.items():
                try:
                    found = resident_bytes(field, str(process))
                except (OSError, KeyError):
                    break  # it has ended meanwhile
                peaks[f"{who}_{kind}"] = max(peaks[f"{who}_{kind}"], found)
        time.sleep(SAMPLE_SECONDS)


def _family(parent: int) -> Iterator[int]:
    yield parent
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


if __name__ == "__main__":
    enter(main, least=2)
