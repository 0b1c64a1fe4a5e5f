"""Best-fit packing: whole documents side by side in rows, and cut only where they must be.

A document longer than a row becomes pieces of a row each, and a shorter rest. Pieces are taken
from the longest to the shortest, and each goes where it leaves the least room, or into a new
row (best-fit decreasing; Ding et al. 2024, arXiv 2404.10830, section 3). As in OLMo-core's
``InstancePacker``, of rows with equal room the one that got it first is filled. What is left of
a row is padding.

Documents are packed in groups of neighbours, so that memory does not grow with the corpus. The
rows of a group stand from the fullest on; a run deals them in its own, shuffled order.
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

Numbers = npt.NDArray[np.int64]

GROUP_DOCUMENTS = 1 << 18  # of usual text some hundred million tokens, thousands of long rows
BLOCK_TOKENS = 1 << 22
FOLDER, NUMBER = "packed", np.dtype("<i8")
REPACK = f"delete the folder {FOLDER} and run action=prepare again"


def cut_documents(ends: Numbers, first: int, length: int) -> Numbers:
    """Cut documents that end at ``ends`` into pieces of ``length`` at most: (start, length)."""
    starts = np.concatenate(([first], ends[:-1]))
    counts = -(-(ends - starts) // length)
    document = np.repeat(np.arange(len(ends)), counts)
    place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[document] + place * length
    return np.stack([begins, np.minimum(length, ends[document] - begins)], axis=1)


def best_fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """Put pieces, each ``length`` at most, into rows: the numbers of the pieces of each."""
    rows: list[list[int]] = []
    by_room: defaultdict[int, deque[int]] = defaultdict(deque)
    rooms = 0  # bit r is set where a row has room for r more
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
        if left := room - size:
            by_room[left].append(row)
            rooms |= 1 << left
    return rows


def document_ends(
    tokens: ShardedTokens, eod_id: int, block: int = BLOCK_TOKENS
) -> Iterator[Numbers]:
    """Find where documents end, behind their last token; so does what has no end of its own."""
    for start in range(0, len(tokens), block):
        found = tokens.read(start, start + block)
        ends = np.flatnonzero(found == eod_id) + (start + 1)
        if start + block >= len(tokens) and (not len(ends) or ends[-1] < len(tokens)):
            ends = np.append(ends, len(tokens))
        yield ends


def groups(ends: Iterator[Numbers], size: int) -> Iterator[Numbers]:
    """Join and cut blocks of numbers so that each has ``size``, but for the last."""
    held = np.empty(0, np.int64)
    for block in ends:
        held = np.concatenate([held, block])
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if len(held):
        yield held


@dataclass(frozen=True)
class PackedRows:
    """Rows of a source: all ``pieces`` (start, length), and where those of each row begin."""

    pieces: Numbers
    begins: Numbers
    tokens: int
    file: Path

    def __len__(self) -> int:
        return len(self.begins) - 1

    def read(self, row: int, tokens: ShardedTokens, length: int, eod_id: int) -> Numbers:
        """Read a row and the token after it, ``[length + 1]``; padding are ends of documents.

        A piece that fills a row is followed by what follows it in the document.
        """
        begin, end = self.begins[row], self.begins[row + 1]
        pieces = self.pieces[max(begin, 0) : end].tolist()
        is_sound = len(pieces) == end - begin > 0 and all(
            0 <= start < start + size <= len(tokens) for start, size in pieces
        )
        if not is_sound or sum(size for _, size in pieces) > length:
            raise RecipeError(str(self.file), f"row {row:,} is damaged", REPACK)
        whole = len(pieces) == 1 and pieces[0][1] == length
        parts = [tokens.read(start, start + size + whole) for start, size in pieces]
        found = np.full(length + 1, eod_id, np.int64)
        joined = np.concatenate(parts)
        found[: len(joined)] = joined
        if whole and joined[length - 1] == eod_id:  # it ended there: what follows is another
            found[length] = eod_id
        return found


def pack_tokens(
    tokens: ShardedTokens, *, length: int, eod_id: int, group: int = GROUP_DOCUMENTS
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield of each group of documents its pieces, row by row, and how many each row has."""
    first = 0
    for ends in groups(document_ends(tokens, eod_id), group):
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
    """Pack one source and keep its rows beside the token files, or read what is kept."""
    files = _files(folder, name, length)
    if not has_rows(folder, name, length):
        tokens = ShardedTokens(records=source.train, files=OpenFiles(folder=folder))
        files[0].parent.mkdir(exist_ok=True)
        with replace_atomically(files[0]) as pieces, replace_atomically(files[1]) as begins:
            begun = 0
            for group, counts in pack_tokens(tokens, length=length, eod_id=eod_id):
                pieces.write(group.astype(NUMBER).data)
                begins.write((begun + np.cumsum(counts) - counts).astype(NUMBER).data)
                begun += len(group)
            begins.write(np.array([begun, len(tokens)], NUMBER).data)
    return open_rows(folder, name, source, length=length)


def open_rows(folder: Path, name: str, source: SourceRecord, *, length: int) -> PackedRows:
    """Map the rows of a source into memory.

    Raises:
        RecipeError: they are not there, or of other token files.
    """
    files = _files(folder, name, length)
    if not has_rows(folder, name, length):
        problem = f"is not there: nobody packed {name} in rows of {length:,} tokens"
        raise RecipeError(str(files[0]), problem, "run action=prepare with this recipe")
    for file in files:
        check_regular(file, str(file))
    try:
        *begins, tokens = (numbers := np.memmap(files[1], NUMBER, "r"))[-2:]
        found = np.memmap(files[0], NUMBER, "r") if int(begins[0]) else np.empty(0, NUMBER)
        pieces = found.reshape(-1, 2)
    except (ValueError, IndexError) as error:  # empty, or cut
        raise RecipeError(str(files[1]), f"is damaged: {error}", REPACK) from None
    if int(tokens) != source.train_tokens:
        problem = f"has {tokens:,} tokens, the manifest says {source.train_tokens:,}"
        raise RecipeError(str(files[1]), problem, REPACK)
    return PackedRows(pieces, numbers[:-1], int(tokens), files[0])


def has_rows(folder: Path, name: str, length: int) -> bool:
    """Whether a source was packed in rows of that length."""
    return all(file.exists() for file in _files(folder, name, length))


def _files(folder: Path, name: str, length: int) -> tuple[Path, Path]:
    stem = folder / FOLDER / f"{name}-{length}"
    return stem.with_name(f"{stem.name}.pieces"), stem.with_name(f"{stem.name}.rows")


def pack_sources(
    folder: Path,
    manifest: Manifest,
    names: Sequence[str],
    length: int,
) -> list[str]:
    """Pack the sources that a run reads; return how full the rows of each are, as text."""
    said = []
    for name in names:
        source, eod_id = manifest.sources[name], manifest.tokenizer.eod_id
        rows = pack_source(folder, name, source, length=length, eod_id=eod_id)
        full = rows.tokens / max(1, len(rows) * length)
        said.append(f"packed: {name}, {len(rows):,} rows of {length:,} tokens, {full:.2%} full")
    return said
