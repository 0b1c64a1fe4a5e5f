"""How long until the first batch, compared with megatron-core?

The files are sparse: they have the size of a corpus and contain zeros. Ours reads a manifest of
3,000 token files with four trillion tokens, and 16 samples; it builds no index. megatron-core
(GPTDataset, all defaults, no cached index) builds and caches document, sample and shuffle index
of one epoch and reads 16 samples. Its corpus doubles until the next size would take more than a
minute. Both are timed after the imports, in a new process with one thread.

    python -m benchmarks.preparation.data_open PYTHON

PYTHON belongs to an environment with megatron-core; this environment does not need it.
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

from benchmarks.entry import run_script
from benchmarks.machine import call_in_process, peak_added_bytes
from benchmarks.preparation.megatron_files import run_megatron
from benchmarks.ratios import Ratio, save_result
from benchmarks.results_store import benchmark_context
from components.child_process import python_environment
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleOrder
from components.data.samples import PackedSamples
from components.data.token_file import TokenFileRecord
from components.terminal import create_console

FILES, FILE_TOKENS = 3_000, 1_333_333_334
LENGTH, SAMPLES, DOCUMENT_TOKENS, TOKEN_BYTES = 4_096, 16, 1_000, 2
FIRST_DOCUMENTS, MOST_SECONDS, MOST_BYTES = 1 << 23, 60, 8 << 30
MEGATRON_PROGRAM = """
import json, resource, sys, time, warnings
from importlib.metadata import version
warnings.simplefilter("ignore")  # megatron-core warns about optional packages
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
before, start = peak(), time.perf_counter()
documents = np.arange(task["documents"], dtype=np.int32)
low = IndexedDataset(task["prefix"])
dataset = GPTDataset(low, task["prefix"], documents, None, Split.train, config)
assert len(dataset) > task["documents"] * task["document_tokens"] // task["length"] - 2
for number in range(task["samples"]):
    assert len(dataset[number]["tokens"]) == task["length"]
seconds = time.perf_counter() - start
figures = {"seconds": seconds, "added_bytes": peak() - before}
figures["version"] = version("megatron-core")
sys.stdout.write("\\n" + json.dumps(figures))
"""


def write_ours(folder: Path, files: int) -> None:
    """Write sparse token files and their manifest."""
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
        key="sparse", tokenizer=tokenizer, held_out_fraction=0.1, sources={"all": source}
    ).save_manifest(folder)


def open_ours(folder: Path) -> dict[str, float]:
    """Measure time and memory of the first batch; the process must be new."""
    torch.set_num_threads(1)
    seconds = 0.0

    def read_first_batch() -> None:
        nonlocal seconds
        start = time.perf_counter()
        manifest = Manifest.from_folder(folder)
        phase = Phase(first_sample=0, shares={"all": 1.0}, path="data.shares")
        windows = windows_per_source(manifest, LENGTH)
        order = SampleOrder(phases=[phase], samples=windows, seed=0)
        samples = PackedSamples(
            folder=folder, manifest=manifest, order=order, sequence_length=LENGTH
        )
        batch = torch.stack([samples[number] for number in range(SAMPLES)])
        assert batch.shape == (SAMPLES, LENGTH + 1)
        seconds = time.perf_counter() - start

    added_bytes = peak_added_bytes(read_first_batch)
    return {"seconds": seconds, "added_bytes": added_bytes}


WRITER = """
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


def open_megatron(python: str, documents: int) -> dict[str, float]:
    """Measure megatron-core on a corpus of equal documents, which is then removed."""
    with tempfile.TemporaryDirectory() as home:
        prefix = str(Path(home) / "corpus")
        words = ("-c", WRITER, prefix, str(documents), str(DOCUMENT_TOKENS))
        subprocess.run([sys.executable, *words], env=python_environment(), check=True)
        output = run_megatron(
            python,
            MEGATRON_PROGRAM,
            prefix=prefix,
            cache=str(Path(home) / "cache"),
            documents=documents,
            document_tokens=DOCUMENT_TOKENS,
            length=LENGTH,
            samples=SAMPLES,
        )
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def find_largest_corpus(python: str) -> tuple[int, dict[str, float]]:
    """Double megatron-core's corpus up to the limit of time or memory."""
    documents = FIRST_DOCUMENTS
    while True:
        figures = open_megatron(python, documents)
        create_console(stderr=True).print(f"megatron-core: {documents:,} documents, {figures}")
        if figures["seconds"] > MOST_SECONDS / 2 or figures["added_bytes"] > MOST_BYTES / 2:
            return documents, figures
        documents *= 2


def measure_ours(files: int) -> dict[str, float]:
    """Measure ours in a new process, on files that are then removed."""
    with tempfile.TemporaryDirectory() as home:
        write_ours(Path(home), files)
        return call_in_process(open_ours, Path(home))


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
    """Measure both and save the result."""
    (python,) = words
    documents, theirs = find_largest_corpus(python)
    tokens = documents * DOCUMENT_TOKENS
    measured = {
        "ours": (FILES * FILE_TOKENS, measure_ours(FILES)),
        "ours, as many tokens as theirs": (tokens, measure_ours(-(-tokens // FILE_TOKENS))),
        "megatron-core": (tokens, theirs),
    }
    rows = {
        name: {"tokens": count, **{key: figures[key] for key in ("seconds", "added_bytes")}}
        for name, (count, figures) in measured.items()
    }
    shape = {
        "sequence_length": LENGTH,
        "samples": SAMPLES,
        "document_tokens": DOCUMENT_TOKENS,
        "token_bytes": TOKEN_BYTES,
        "files": FILES,
    }
    context = benchmark_context("data_open", shape)
    context["versions"] |= {"megatron-core": theirs["version"]}
    tree = {"rows": rows, "load": os.getloadavg()[0]}
    return save_result("data_open", context | tree, ratios_of(rows))


if __name__ == "__main__":
    run_script(main, min_words=1, max_words=1)
