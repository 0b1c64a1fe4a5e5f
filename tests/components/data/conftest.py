"""A prepared folder with consecutive tokens: source ``a`` from 0, ``b`` from 500."""

from pathlib import Path

import pytest

from components.data.files import FileRecord, record_file
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.token_file import TokenFileRecord, write_token_file

EOD_ID, VOCAB_SIZE = 999, 1000


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, Manifest]:
    """Write 102 and 52 training tokens, 11 and 5 held-out ones, with ends of documents."""
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    tokenizer = TokenizerRecord(
        settings={"vocab_size": VOCAB_SIZE, "splitting": {"split_digits": True}},
        files=(record_file(tmp_path / "tokenizer.model"),),
        vocab_size=VOCAB_SIZE,
        eod_id=EOD_ID,
    )
    sources = {
        "a": write_source(tmp_path, "a", 0, 101, 10),
        "b": write_source(tmp_path, "b", 500, 51, 4),
    }
    manifest = Manifest(
        key="0123456789abcdef", tokenizer=tokenizer, held_out_fraction=0.1, sources=sources
    )
    return tmp_path, manifest


def write_source(
    folder: Path, name: str, first: int, num_train: int, num_held_out: int
) -> SourceRecord:
    def write(side: str, count: int) -> TokenFileRecord:
        file, documents = folder / f"{name}.{side}.tokens", [range(first, first + count)]
        return write_token_file(file, documents, eod_id=EOD_ID, vocab_size=VOCAB_SIZE)

    return SourceRecord(
        inputs=(FileRecord(f"{name}.txt", "00", 7),),
        documents=2,
        train=(write("train", num_train),),
        held_out=(write("held_out", num_held_out),),
    )
