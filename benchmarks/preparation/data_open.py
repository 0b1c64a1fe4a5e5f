"""How long until the first batch: ours at four trillion tokens, megatron-core's in a minute?

The files are sparse: they have the sizes of a corpus, and hold zeros. Ours: a manifest of 3,000
token files is read, and 16 samples; nothing is built. Theirs (GPTDataset, all defaults, no
cache found): document, sample and shuffle index of one epoch are built and cached, then 16
samples are read; the corpus doubles until twice as much would take more than a minute. Each is
timed after its imports, in a new process of one thread.

    python -m benchmarks.preparation.data_open PYTHON

PYTHON is that of an environment with megatron-core; this one needs none of it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.machine import apart, peak_added_bytes
from benchmarks.preparation.megatron_files import there
from benchmarks.ratios import Ratio, keep_result
from components.child_process import python_environment
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleOrder
from components.data.samples import PackedSamples
from components.data.token_file import TokenFileRecord
from components.terminal import console

FILES, FILE_TOKENS = 3_000, 1_333_333_334
LENGTH, SAMPLES, DOCUMENT_TOKENS, TOKEN_BYTES = 4_096, 16, 1_000, 2
FIRST_DOCUMENTS, MOST_SECONDS, MOST_BYTES = 1 << 23, 60, 8 << 30
THERE = """
import json, resource, sys, time, warnings
from importlib.metadata import version
warnings.simplefilter("ignore")  # megatron-core tells of parts that are not installed
import numpy as np, torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split
task = json.load(sys.stdin)
torch.set_num_threads(1)
class Tokenizer:
    eod, pad, vocab_size, unique_identifiers = 0, 1, 1000, {"class": "none"}
flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
config = GPTDatasetConfig(
    random_seed=0, sequence_length=task["length"], blend=([task["prefix"]], None),
    split="1,0,0", tokenizer=Tokenizer(), path_to_cache=task["cache"],
    **dict.fromkeys(flags, False),
)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, began = peak(), time.perf_counter()
documents = np.arange(task["documents"], dtype=np.int32)
low = IndexedDataset(task["prefix"])
dataset = GPTDataset(low, task["prefix"], documents, None, Split.train, config)
assert len(dataset) > task["documents"] * task["document_tokens"] // task["length"] - 2
for number in range(task["samples"]):
    assert len(dataset[number]["tokens"]) == task["length"]
seconds = time.perf_counter() - began
found = {"seconds": seconds, "added_bytes": peak() - before}
found["version"] = version("megatron-core")
sys.stdout.write("\\n" + json.dumps(found))
"""


def write_ours(folder: Path, files: int) -> None:
    """Lay out sparse token files and their manifest."""
    size = FILE_TOKENS * TOKEN_BYTES
    records = []
    for number in range(files):
        path = folder / f"{number:04}.tokens"
        with path.open("wb") as file:
            file.truncate(size)
        records.append(TokenFileRecord(path.name, "0" * 64, size, FILE_TOKENS, 1, "uint16"))
    source = SourceRecord(inputs=(), documents=files, train=tuple(records), held_out=())
    tokenizer = TokenizerRecord(settings={}, files=(), vocab_size=1000, eod_id=0)
    Manifest(
        key="pretend", tokenizer=tokenizer, held_out_fraction=0.1, sources={"all": source}
    ).write(folder)


def open_ours(folder: Path) -> dict[str, float]:
    """Time the first batch, and measure the memory it takes; the process must be new."""
    torch.set_num_threads(1)
    seconds = 0.0

    def first_batch() -> None:
        nonlocal seconds
        began = time.perf_counter()
        manifest = Manifest.read(folder)
        phase = Phase(first_sample=0, shares={"all": 1.0}, path="data.shares")
        windows = windows_per_source(manifest, LENGTH)
        order = SampleOrder(phases=[phase], samples=windows, seed=0)
        samples = PackedSamples(
            folder=folder, manifest=manifest, order=order, sequence_length=LENGTH
        )
        batch = torch.stack([samples[number] for number in range(SAMPLES)])
        assert batch.shape == (SAMPLES, LENGTH + 1)
        seconds = time.perf_counter() - began

    added_bytes = peak_added_bytes(first_batch)
    return {"seconds": seconds, "added_bytes": added_bytes}


WRITE = """
import struct, sys
import numpy as np
prefix, documents, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(prefix + ".idx", "wb") as file:
    file.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, documents, documents + 1))
    np.full(documents, tokens, np.int32).tofile(file)
    (np.arange(documents, dtype=np.int64) * 2 * tokens).tofile(file)
    np.arange(documents + 1, dtype=np.int64).tofile(file)
with open(prefix + ".bin", "wb") as file:
    file.truncate(documents * tokens * 2)
"""


def open_theirs(python: str, documents: int) -> dict[str, float]:
    """Write a corpus of equal documents, let megatron-core build over it, and take it away."""
    with tempfile.TemporaryDirectory() as home:
        prefix = str(Path(home) / "corpus")
        sizes = (str(documents), str(DOCUMENT_TOKENS))
        subprocess.run(
            [sys.executable, "-c", WRITE, prefix, *sizes], env=python_environment(), check=True
        )
        printed = there(
            python,
            THERE,
            prefix=prefix,
            cache=str(Path(home) / "cache"),
            documents=documents,
            document_tokens=DOCUMENT_TOKENS,
            length=LENGTH,
            samples=SAMPLES,
        )
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def largest_of_theirs(python: str) -> tuple[int, dict[str, float]]:
    """Double the corpus until it takes a minute, or the memory that we grant."""
    documents = FIRST_DOCUMENTS
    while True:
        found = open_theirs(python, documents)
        console(stderr=True).print(f"megatron-core: {documents:,} documents, {found}")
        if found["seconds"] > MOST_SECONDS / 2 or found["added_bytes"] > MOST_BYTES / 2:
            return documents, found
        documents *= 2


def measure_ours(files: int) -> dict[str, float]:
    """Measure in a process of its own, over files that are gone afterwards."""
    with tempfile.TemporaryDirectory() as home:
        write_ours(Path(home), files)
        return apart(open_ours, Path(home))


def ratios_of(rows: Mapping[str, Mapping[str, Any]]) -> list[Ratio]:
    """Divide megatron-core's seconds and memory by ours."""
    return [
        Ratio(
            f"{row['tokens']:,} tokens, {quantity}",
            "megatron-core",
            rows["megatron-core"][key] / row[key],
            at_least=1.0,
        )
        for name, row in rows.items()
        if name != "megatron-core"
        for quantity, key in (("time", "seconds"), ("memory", "added_bytes"))
    ]


def main(words: list[str]) -> int:
    """Measure both, and keep the result."""
    (python,) = words
    documents, theirs = largest_of_theirs(python)
    tokens = documents * DOCUMENT_TOKENS
    measured = {
        "ours": (FILES * FILE_TOKENS, measure_ours(FILES)),
        "ours, as many tokens as theirs": (tokens, measure_ours(-(-tokens // FILE_TOKENS))),
        "megatron-core": (tokens, theirs),
    }
    rows = {
        name: {
            "tokens": count,
            "seconds": found["seconds"],
            "added_bytes": found["added_bytes"],
        }
        for name, (count, found) in measured.items()
    }
    context = circumstances(
        peer="megatron-core's GPTDataset, all defaults, without a cache",
        convention="seconds from the manifest, or the index, to 16 samples, after imports, "
        "one thread, new processes; theirs is the largest doubling below a minute",
        shape={
            "sequence_length": LENGTH,
            "samples": SAMPLES,
            "document_tokens": DOCUMENT_TOKENS,
            "token_bytes": TOKEN_BYTES,
            "files": FILES,
        },
        packages=("torch",),
    )
    context["versions"] |= {"megatron-core": theirs["version"]}
    figures = {"rows": rows, "load": os.getloadavg()[0]}
    return keep_result("data_open", context | figures, ratios_of(rows))


if __name__ == "__main__":
    enter(main, least=1, most=1)
