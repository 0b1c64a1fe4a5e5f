"""Prepared token files as Megatron reads them: an index beside each, and no second copy."""

import os
import shutil
from pathlib import Path

from components.data.manifest import Manifest
from components.data.megatron import write_index
from components.data.shards import MOST_OPEN, OpenFiles
from components.data.token_file import TokenFileRecord


def write_megatron(folder: Path, manifest: Manifest) -> list[Path]:
    """Write ``PREFIX.bin`` and ``PREFIX.idx`` for each token file; return the prefixes.

    A ``.bin`` file has the bytes of the token file: it is another name of it, and a copy only
    where the file system has no such names. Files that are read in place are left out.
    """
    files = OpenFiles(folder=folder, most_open=MOST_OPEN)
    records = [
        record
        for source in manifest.sources.values()
        for record in (*source.train, *source.held_out)
        if not Path(record.name).is_absolute()
    ]
    return [_write(folder, record, files, manifest.tokenizer.eod_id) for record in records]


def _write(folder: Path, record: TokenFileRecord, files: OpenFiles, eod_id: int) -> Path:
    prefix = (folder / record.name).with_suffix("")
    target = Path(f"{prefix}.bin")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            partial.hardlink_to(folder / record.name)
        except OSError:  # the file system has no second names
            shutil.copyfile(folder / record.name, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    write_index(prefix, files.tokens(record), record.dtype, eod_id=eod_id)
    return prefix
