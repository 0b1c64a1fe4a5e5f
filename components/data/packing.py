"""Best-fit packing: put whole documents into rows, and cut only those longer than a row.

A document longer than a row becomes pieces of one row each, plus a shorter rest. Pieces are
placed from longest to shortest. Each goes into the row where it leaves the least free space, or
into a new row (best-fit decreasing; Ding et al. 2024, arXiv 2404.10830, section 3). Among rows
with equal free space, the first that got this space is filled, as in OLMo-core's
``InstancePacker``. The free space that remains in a row is padding.

Documents are packed in groups of consecutive ones, to limit memory. Rows of a group are in the
order of their creation; a run shuffles them.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from components.data.files import check_regular, replace_atomically
from components.data.manifest import Manifest, SourceRecord
from components.data.token_file import OpenFiles, ShardedTokens
from components.errors import RecipeError

IndexArray = npt.NDArray[np.int64]

GROUP_DOCUMENTS = 1 << 18  # typically some hundred million tokens, thousands of long rows
BLOCK_TOKENS = 1 << 22
FOLDER, NUMBER = "packed", np.dtype("<i8")
REPACK = f"delete the folder {FOLDER} and run action=prepare again"


def cut_documents(ends: IndexArray, first: int, length: int) -> IndexArray:
    """Cut documents that end at ``ends`` into pieces (start, size) of at most ``length``."""
    starts = np.concatenate(([first], ends[:-1]))
    counts = -(-(ends - starts) // length)
    document = np.repeat(np.arange(len(ends)), counts)
    place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[document] + place * length
    return np.stack([begins, np.minimum(length, ends[document] - begins)], axis=1)


def best_fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Assign pieces of at most ``length`` to rows; return the piece numbers of each row."""
    rows: list[list[int]] = []
    by_room: defaultdict[int, deque[int]] = defaultdict(deque)
    rooms = 0  # bit r is set if a row has exactly r tokens of free space
    for piece in np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist():
        size = lengths[piece]
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].popleft()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = length, len(rows)
            rows.append([])
        rows[row].append(piece)
        if free := room - size:
            by_room[free].append(row)
            rooms |= 1 << free
    return rows


def document_ends(
    tokens: ShardedTokens, eod_id: int, block: int = BLOCK_TOKENS
) -> Iterator[IndexArray]:
    """Yield the ends of documents, exclusive; text after the last end id is a document too."""
    for start in range(0, len(tokens), block):
        ids = tokens.read_tokens(start, start + block)
        ends = np.flatnonzero(ids == eod_id) + (start + 1)
        if start + block >= len(tokens) and (not len(ends) or ends[-1] < len(tokens)):
            ends = np.append(ends, len(tokens))
        yield ends


def regroup_arrays(ends: Iterator[IndexArray], size: int) -> Iterator[IndexArray]:
    """Regroup arrays of numbers into arrays of ``size``; the last may be shorter."""
    buffer = np.empty(0, np.int64)
    for block in ends:
        buffer = np.concatenate([buffer, block])
        while len(buffer) >= size:
            yield buffer[:size]
            buffer = buffer[size:]
    if len(buffer):
        yield buffer


@dataclass(frozen=True)
class PackedRows:
    """Packed rows of a source: all ``pieces`` (start, size), and each row's first piece."""

    pieces: IndexArray
    begins: IndexArray
    tokens: int
    file: Path

    def __len__(self) -> int:
        return len(self.begins) - 1

    def read_row(self, row: int, tokens: ShardedTokens, length: int, eod_id: int) -> IndexArray:
        """Read a row and the token after it, ``[length + 1]``; end-of-document ids pad the row.

        A piece that fills the row is followed by the document's next token.
        """
        begin, end = self.begins[row], self.begins[row + 1]
        pieces = self.pieces[max(begin, 0) : end].tolist()
        is_sound = len(pieces) == end - begin > 0 and all(
            0 <= start < start + size <= len(tokens) for start, size in pieces
        )
        if not is_sound or sum(size for _, size in pieces) > length:
            raise RecipeError(str(self.file), f"row {row:,} is damaged", REPACK)
        fills_row = len(pieces) == 1 and pieces[0][1] == length
        parts = [tokens.read_tokens(start, start + size + fills_row) for start, size in pieces]
        window = np.full(length + 1, eod_id, np.int64)
        joined = np.concatenate(parts)
        window[: len(joined)] = joined
        # The token after a document's end belongs to another document.
        if fills_row and joined[length - 1] == eod_id:
            window[length] = eod_id
        return window


def pack_tokens(
    tokens: ShardedTokens, *, length: int, eod_id: int, group: int = GROUP_DOCUMENTS
) -> Iterator[tuple[IndexArray, IndexArray]]:
    """Yield each group's pieces, ordered by row, and the number of pieces in each row."""
    first = 0
    for ends in regroup_arrays(document_ends(tokens, eod_id), group):
        pieces = cut_documents(ends, first, length)
        first = int(ends[-1])
        rows = best_fit(pieces[:, 1].tolist(), length)
        yield (
            pieces[[piece for row in rows for piece in row]],
            np.array([len(row) for row in rows], np.int64),
        )


def pack_source(
    folder: Path, name: str, source: SourceRecord, *, length: int, eod_id: int
) -> PackedRows:
    """Pack one source and store its rows next to the token files, or open the stored rows."""
    files = _files(folder, name, length)
    if not has_rows(folder, name, length):
        tokens = ShardedTokens(records=source.train, files=OpenFiles(folder=folder))
        files[0].parent.mkdir(exist_ok=True)
        with replace_atomically(files[0]) as pieces, replace_atomically(files[1]) as begins:
            num_pieces = 0
            for group, counts in pack_tokens(tokens, length=length, eod_id=eod_id):
                pieces.write(group.astype(NUMBER).data)
                begins.write((num_pieces + np.cumsum(counts) - counts).astype(NUMBER).data)
                num_pieces += len(group)
            begins.write(np.array([num_pieces, len(tokens)], NUMBER).data)
    return open_rows(folder, name, source, length=length)


def open_rows(folder: Path, name: str, source: SourceRecord, *, length: int) -> PackedRows:
    """Map the rows of a source into memory."""
    files = _files(folder, name, length)
    if not has_rows(folder, name, length):
        problem = f"does not exist: {name} is not packed in rows of {length:,} tokens"
        raise RecipeError(str(files[0]), problem, "run action=prepare with this recipe")
    for file in files:
        check_regular(file, str(file))
    try:
        *begins, tokens = (numbers := np.memmap(files[1], NUMBER, "r"))[-2:]
        flat_pieces = (
            np.memmap(files[0], NUMBER, "r") if int(begins[0]) else np.empty(0, NUMBER)
        )
        pieces = flat_pieces.reshape(-1, 2)
    except (ValueError, IndexError) as error:  # empty or truncated
        raise RecipeError(str(files[1]), f"is damaged: {error}", REPACK) from None
    if int(tokens) != source.train_tokens:
        problem = f"has {tokens:,} tokens, the manifest states {source.train_tokens:,}"
        raise RecipeError(str(files[1]), problem, REPACK)
    return PackedRows(pieces, numbers[:-1], int(tokens), files[0])


def has_rows(folder: Path, name: str, length: int) -> bool:
    """Return whether a source was packed into rows of ``length``."""
    return all(file.exists() for file in _files(folder, name, length))


def _files(folder: Path, name: str, length: int) -> tuple[Path, Path]:
    stem = folder / FOLDER / f"{name}-{length}"
    return stem.with_name(f"{stem.name}.pieces"), stem.with_name(f"{stem.name}.rows")


def pack_sources(
    folder: Path, manifest: Manifest, names: Sequence[str], length: int
) -> list[str]:
    """Pack the sources that a run reads; return one line per source with its packing rate."""
    lines = []
    for name in names:
        source, eod_id = manifest.sources[name], manifest.tokenizer.eod_id
        rows = pack_source(folder, name, source, length=length, eod_id=eod_id)
        full = rows.tokens / max(1, len(rows) * length)
        lines.append(
            f"packed: {name}, {len(rows):,} rows of {length:,} tokens, {full:.2%} full"
        )
    return lines
