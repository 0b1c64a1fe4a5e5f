"""Can megatron-core read our token files, and can we read its files?

megatron-core's builder writes files that we read, and its IndexedDataset reads our files. Every
token of every document is compared, in both integer widths, with empty documents and documents
of several sequences.

    python -m benchmarks.preparation.megatron_files PYTHON [GOLDEN]

PYTHON belongs to an environment with megatron-core; this environment does not need it. With a
folder GOLDEN, megatron-core writes the small files of the tests into that folder.
"""

import json
import subprocess
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.entry import run_script
from components.child_process import python_environment
from components.data.megatron import read_index, write_index
from components.data.token_file import write_token_file
from components.terminal import create_console

EOD = 1
VOCAB_SIZES = {"uint16": 1000, "int32": 70_000}
SEQUENCES, GOLDEN_SEQUENCES = 2_000, 6
MEGATRON_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")  # megatron-core warns about optional packages
import numpy as np, torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
task = json.load(sys.stdin)
if task["do"] == "write":
    kind = getattr(np, task["dtype"])
    builder = IndexedDatasetBuilder(task["prefix"] + ".bin", dtype=kind)
    for document in task["documents"]:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(task["prefix"] + ".idx")
else:
    read = IndexedDataset(task["prefix"])
    borders = read.document_indices.tolist()
    documents = [[read[i].tolist() for i in range(*pair)] for pair in zip(borders, borders[1:])]
    sys.stdout.write(json.dumps(documents))
"""

TokenDocuments = list[list[list[int]]]


def run_megatron(python: str, program: str = MEGATRON_PROGRAM, **task: object) -> str:
    """Run a program with megatron-core on one task, and return its output."""
    command = [python, "-c", program]
    process = subprocess.run(
        command,
        env=python_environment(),
        input=json.dumps(task),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return process.stdout


def draw_documents(vocab_size: int, count: int) -> TokenDocuments:
    """Draw documents of one to three sequences, the last token is EOD; some are empty."""
    generator = np.random.default_rng(vocab_size)
    documents: TokenDocuments = [[[]], [[vocab_size - 1, EOD]]]
    for number in range(count):
        sizes = generator.integers(0, 9, size=1 + number % 3)
        sequences = [generator.integers(2, vocab_size, size).tolist() for size in sizes]
        documents.append([*sequences[:-1], [*sequences[-1], EOD]])
    return documents


def read_ours(prefix: Path) -> list[list[int]]:
    """Read documents with our index reader."""
    index = read_index(str(prefix), "prefix")
    tokens = np.fromfile(index.bin_file, index.width)
    ends = index.document_ends(0, index.num_documents)
    return [part.tolist() for part in np.split(tokens, ends)[:-1]]


def compare_files(python: str, dtype: str, home: Path) -> int:
    """Exchange files in both directions; return the number of compared tokens."""
    vocab_size = VOCAB_SIZES[dtype]
    documents = draw_documents(vocab_size, SEQUENCES)
    joined = [[token for part in document for token in part] for document in documents]
    theirs, ours = str(home / f"theirs_{dtype}"), home / f"ours_{dtype}"
    run_megatron(python, do="write", prefix=theirs, dtype=dtype, documents=documents)
    assert read_ours(Path(theirs)) == joined, "our reader differs"
    without_eod = [document[:-1] for document in joined if document]
    file = Path(f"{ours}.bin")
    record = write_token_file(file, without_eod, eod_id=EOD, vocab_size=vocab_size)
    tokens = np.fromfile(file, record.dtype)
    write_index(ours, tokens, record.dtype, eod_id=EOD)
    read = json.loads(run_megatron(python, do="read", prefix=str(ours)))
    assert read == [[document] for document in joined if document], "their reader differs"
    return sum(map(len, joined))


def main(words: list[str]) -> None:
    """Compare both widths, or write the golden files of the tests."""
    python, *golden = words
    if golden:
        for dtype, vocab_size in VOCAB_SIZES.items():
            pieces = draw_documents(vocab_size, GOLDEN_SEQUENCES)
            whole = [[joined] for document in pieces if (joined := list(chain(*document)))]
            for name, documents in ((dtype, pieces), (f"{dtype}_whole", whole)):
                path = str(Path(golden[0]) / name)
                run_megatron(python, do="write", prefix=path, dtype=dtype, documents=documents)
                Path(f"{path}.json").write_text(json.dumps(documents) + "\n", "utf-8")
        return
    with tempfile.TemporaryDirectory() as home:
        for dtype in VOCAB_SIZES:
            tokens = compare_files(python, dtype, Path(home))
            create_console().print(f"{dtype}: {tokens:,} tokens are equal in both directions")


if __name__ == "__main__":
    run_script(main, min_words=1)
