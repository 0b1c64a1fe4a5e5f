"""The pass that finds duplicates: of documents that are alike, the first one stays.

The first is the first in the order of (source, input, document). One task reads all hashes, a
part of their range at a time, and all signatures; it writes a verdict for each document.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from components.config.schema.data import NearDuplicates
from data_prep.near_duplicates import find_duplicates
from data_prep.stages.clean import HASHES
from data_prep.stages.cut import check_piece
from data_prep.stages.plan import InputPiece, PassTask
from data_prep.stages.shards import write_array
from data_prep.stages.signatures import BROKEN, SIGNATURES

VERSION = 2
KEEP, EXACT, NEAR = 0, 1, 2
REASONS = {EXACT: "exact duplicate", NEAR: "near duplicate"}
VERDICTS = ".verdicts.npy"
MOST_BYTES = 1 << 30  # of hashes in memory at a time; sorting takes about three times as much

Hashes = npt.NDArray[np.uint64]


def work(task: PassTask, settings: Mapping[str, Any], stem: Path, tally: object) -> list[Path]:
    """Write ``[documents]`` verdicts for each shard, in the order of the hash files."""
    for piece in task.pieces:
        check_piece(piece, "data.preparation.exact_duplicates", BROKEN)
    hashes = [_open(piece) for piece in _of_kind(task, HASHES)]
    verdicts = [np.full(len(one), KEEP, np.uint8) for one in hashes]
    if settings["near_duplicates"] != "none":
        near = NearDuplicates.model_validate(settings["near_duplicates"])
        files = [Path(str(piece.path)) for piece in _of_kind(task, SIGNATURES)]
        found = find_duplicates(files, near, stem.parent)
        for verdict, rows in zip(verdicts, found, strict=True):
            verdict[rows] = NEAR
    if settings["exact_duplicates"] != "none":
        for verdict, rows in zip(verdicts, find_exact(hashes, MOST_BYTES), strict=True):
            verdict[rows] = EXACT
    return [_write(stem, number, verdict) for number, verdict in enumerate(verdicts)]


def find_exact(hashes: Sequence[Hashes], most_bytes: int) -> list[npt.NDArray[np.int64]]:
    """For each ``[documents, 2]`` array of hashes, list the rows that have occurred before."""
    lengths = [len(one) for one in hashes]
    starts = np.cumsum([0, *lengths])
    parts = 1 + sum(one.nbytes for one in hashes) // most_bytes
    repeated = [_repeated(hashes, starts, part, parts) for part in range(parts)]
    rows = np.sort(np.concatenate(repeated))
    cuts = np.searchsorted(rows, starts)
    return [
        rows[begin:end] - start
        for begin, end, start in zip(cuts, cuts[1:], starts, strict=False)
    ]


def _repeated(
    hashes: Sequence[Hashes], starts: npt.NDArray[np.int64], part: int, parts: int
) -> npt.NDArray[np.int64]:
    """Number the documents, over all files, whose hash is of this part and was seen before."""
    chosen = [np.flatnonzero(one[:, 0] % np.uint64(parts) == part) for one in hashes]
    rows = np.concatenate([rows + start for rows, start in zip(chosen, starts, strict=False)])
    values = np.concatenate([one[rows] for one, rows in zip(hashes, chosen, strict=True)])
    order = np.lexsort((rows, values[:, 1], values[:, 0]))
    values = values[order]
    again = (values[1:] == values[:-1]).all(axis=1)
    return np.asarray(rows[order][1:][again], np.int64)


def _of_kind(task: PassTask, suffix: str) -> list[InputPiece]:
    return [piece for piece in task.pieces if piece.name.endswith(suffix)]


def _open(piece: InputPiece) -> Hashes:
    """Map a file of hashes as ``[documents, 2]`` numbers; an empty one cannot be mapped."""
    array = np.load(Path(str(piece.path)), mmap_mode="r", allow_pickle=False)
    return np.asarray(array).view(np.dtype("<u8"))


def _write(stem: Path, number: int, verdict: npt.NDArray[np.uint8]) -> Path:
    file = stem.with_name(f"{number:06d}{VERDICTS}")
    write_array(file, verdict)
    return file
