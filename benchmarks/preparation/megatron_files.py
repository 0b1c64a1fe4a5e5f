"""Do Megatron and we read each other's token files, token by token?

Needs megatron-core in an environment of its own, whose Python is named; this one needs none of
it. There, its builder writes files that we read here; ours are read there by its
IndexedDataset. Then every token of every document is compared, in both widths, with empty
documents and documents of several sequences.

    python -m benchmarks.preparation.megatron_files PYTHON [GOLDEN]

With a second word, the small files for the tests are written by megatron-core into that folder.
"""

import json
import subprocess
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.entry import enter
from components.child_process import python_environment
from components.data.megatron import read_index, write_index
from components.data.token_file import write_token_file
from components.terminal import console

EOD = 1
VOCAB_SIZES = {"uint16": 1000, "int32": 70_000}
SEQUENCES, GOLDEN_SEQUENCES = 2_000, 6
THERE = """
import json, sys, warnings
warnings.simplefilter("ignore")  # megatron-core tells of parts that are not installed
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

Documents = list[list[list[int]]]


def there(python: str, program: str = THERE, **task: object) -> str:
    """Do one task with megatron-core, and return what the program prints."""
    command = [python, "-c", program]
    run = subprocess.run(
        command,
        env=python_environment(),
        input=json.dumps(task),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    return run.stdout


def draw(vocab_size: int, count: int) -> Documents:
    """Make documents of one to three sequences, some empty, each but those with an end."""
    generator = np.random.default_rng(vocab_size)
    documents: Documents = [[[]], [[vocab_size - 1, EOD]]]
    for number in range(count):
        sizes = generator.integers(0, 9, size=1 + number % 3)
        sequences = [generator.integers(2, vocab_size, size).tolist() for size in sizes]
        documents.append([*sequences[:-1], [*sequences[-1], EOD]])
    return documents


def read_here(prefix: Path) -> list[list[int]]:
    """Read the documents with our index, the tokens straight from the file."""
    index = read_index(str(prefix), "prefix")
    tokens = np.fromfile(index.bin_file, index.width)
    ends = index.document_ends(0, index.documents)
    return [part.tolist() for part in np.split(tokens, ends)[:-1]]


def compare(python: str, dtype: str, home: Path) -> int:
    """Send files both ways; return the number of tokens that were compared."""
    vocab_size = VOCAB_SIZES[dtype]
    documents = draw(vocab_size, SEQUENCES)
    joined = [[token for part in document for token in part] for document in documents]
    theirs, ours = str(home / f"theirs_{dtype}"), home / f"ours_{dtype}"
    there(python, do="write", prefix=theirs, dtype=dtype, documents=documents)
    assert read_here(Path(theirs)) == joined, "we read theirs"
    ended = [document[:-1] for document in joined if document]
    record = write_token_file(Path(f"{ours}.bin"), ended, eod_id=EOD, vocab_size=vocab_size)
    written = np.fromfile(f"{ours}.bin", record.dtype)
    write_index(ours, written, record.dtype, eod_id=EOD)
    found = json.loads(there(python, do="read", prefix=str(ours)))
    assert found == [[document] for document in joined if document], "they read ours"
    return sum(map(len, joined))


def main(words: list[str]) -> None:
    """Compare both widths, or write the files that tests read."""
    python, *golden = words
    if golden:
        for dtype, vocab_size in VOCAB_SIZES.items():
            pieces = draw(vocab_size, GOLDEN_SEQUENCES)
            whole = [[joined] for document in pieces if (joined := list(chain(*document)))]
            for name, documents in ((dtype, pieces), (f"{dtype}_whole", whole)):
                prefix = str(Path(golden[0]) / name)
                there(python, do="write", prefix=prefix, dtype=dtype, documents=documents)
                Path(f"{prefix}.json").write_text(json.dumps(documents) + "\n", "utf-8")
        return
    with tempfile.TemporaryDirectory() as home:
        for dtype in VOCAB_SIZES:
            tokens = compare(python, dtype, Path(home))
            console().print(f"{dtype}: {tokens:,} tokens equal, theirs here and ours there")


if __name__ == "__main__":
    enter(main, least=1)
