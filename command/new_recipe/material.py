"""What the user gives for a new recipe: files of text, and a tokenizer or none."""

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from components.convert.tokenizer import FETCH
from components.data.engine_check import check_end, check_engine
from components.data.tokenizer_file import open_engine, refuse_panics
from components.errors import RecipeError
from components.terminal import printable
from data_prep.read import COMPRESSIONS, TABLES, Document, LocalFile
from data_prep.sources import choose_split, measure_groups, open_files

TRAIN = "train"  # tokenizer=train
TEXT = "text"  # the source, where there is one, and the field of a record that is preferred
LEAST_BYTES = 20_000
COUNTED_BYTES = 1 << 27  # of a source; what is beyond is inferred from the sizes of the files
SAMPLE_BYTES = 1 << 22  # of a source, for a tokenizer
FEWEST_PIECES, MOST_PIECES = 512, 32_768
FEWER_PIECES = (384, 320, 288)  # for a text of few different words
MOST_HELD_OUT = 0.1
BYTES_OF_A_PIECE, PARAMETERS_OF_A_PIECE = 400, 1_000
NUM_BYTES = 256
LIST_ITEM = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^,]+))\s*(?:,|$)""")
# Pieces that a recipe lists to say where the end of a document stands; Llama 3 has 256 special.
MOST_NAMED = 256
FILE, CONFIG, SENTENCEPIECE = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
SPECIALS = "special_tokens_map.json"
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|eos|>", "<eod>", "<|end_of_text|>", "[EOS]")
TRAINING = "or let a tokenizer be trained: tokenizer=train"


@dataclass(frozen=True)
class GivenSource:
    """The keys of a source in a recipe, how much text it has, and how its files begin."""

    keys: Mapping[str, Any]
    files: tuple[LocalFile, ...]
    empty: tuple[str, ...]
    num_bytes: int
    num_documents: int
    sample: tuple[Document, ...]


@dataclass(frozen=True)
class GivenText:
    """All sources by name; ``whole`` says that the sample is the whole text."""

    sources: Mapping[str, GivenSource]

    @property
    def patterns(self) -> list[str]:
        return [source.keys["files"][0] for source in self.sources.values()]

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for source in self.sources.values())

    @property
    def num_documents(self) -> int:
        return sum(source.num_documents for source in self.sources.values())

    @property
    def empty(self) -> list[str]:
        return [*chain.from_iterable(source.empty for source in self.sources.values())]

    @property
    def sample(self) -> list[Document]:
        return [*chain.from_iterable(source.sample for source in self.sources.values())]

    @property
    def whole(self) -> bool:
        return sum(len(document.text.encode()) for document in self.sample) == self.num_bytes


@dataclass(frozen=True)
class GivenTokenizer:
    """A folder whose ``tokenizer.json`` was read, and the keys that describe it in a recipe."""

    folder: Path
    pieces: int
    keys: Mapping[str, Any]


def find_text(words: str, column: str | None = None) -> GivenText:
    """Find and read the files of ``data=``: one pattern, or a list of which each is a source.

    Raises:
        RecipeError: no such file, one that is named twice or cannot be read, several fields
            of which each may be the text, or too little text.
    """
    patterns = split_list(words)
    sources, places, columns = dict[str, GivenSource](), set[Path](), set[str]()
    for name, pattern in zip(source_names(patterns), patterns, strict=True):
        files = list(open_files((pattern,), "data", TEXT))
        for file in files:
            if (place := file.path.resolve()) in places:
                raise RecipeError("data", f"{file.path} is named twice", "name each file once")
            places.add(place)
        chosen = choose_column(files, pattern, column)
        columns.add(chosen)
        sources[name] = _read_source(pattern, [replace(file, column=chosen) for file in files])
    if column is not None and column not in columns:
        raise RecipeError("column", f"no record of data= has text in {column!r}", "correct it")
    text = GivenText(sources)
    if text.num_bytes < LEAST_BYTES:
        problem = f"{len(places)} files of {text.num_bytes:,} bytes are too little to train on"
        raise RecipeError("data", problem, f"name {LEAST_BYTES:,} bytes of text at least")
    return text


def choose_column(files: Sequence[LocalFile], pattern: str, wanted: str | None) -> str:
    """Choose the field of records that holds the text: ``wanted``, ``text``, or the only one.

    Raises:
        RecipeError: there are several, or the files have none in common.
    """
    listed = [names for file in files if (names := file.text_columns())]
    if not listed:
        return TEXT
    shared = [name for name in listed[0] if all(name in names for names in listed)]
    for preferred in (wanted, TEXT):
        if preferred in shared:
            return preferred
    if len(shared) == 1:
        return shared[0]
    fields = ", ".join(dict.fromkeys(chain.from_iterable(listed)))
    problem = f"{pattern} has text in {fields}"
    remedy = "name the field to train on, in all of its files: column=NAME"
    raise RecipeError("column", problem, remedy)


def _read_source(pattern: str, files: Sequence[LocalFile]) -> GivenSource:
    filled = [file for file in files if not file.is_empty()]
    sizes = {file.path: file.path.stat().st_size for file in filled}
    stored = sum(sizes.values())
    room = SAMPLE_BYTES if stored <= SAMPLE_BYTES else SAMPLE_BYTES // len(filled)
    read = num_bytes = num_documents = 0
    sample: list[Document] = []
    for file in filled:
        size, left = sizes[file.path], room
        if num_bytes >= COUNTED_BYTES:
            break
        if size > COUNTED_BYTES and file.path.suffix not in (*COMPRESSIONS, *TABLES):
            file, size = replace(file, end=COUNTED_BYTES), COUNTED_BYTES
        read += size
        for document in file.documents():
            num_bytes += len(document.text.encode())
            num_documents += 1
            if left > 0:
                sample.append(replace(document, text=document.text[:left]))
                left -= len(document.text)
    column = files[0].column
    return GivenSource(
        keys={"files": [as_pattern(pattern)]} | ({} if column == TEXT else {"column": column}),
        files=tuple(filled),
        empty=tuple(file.name for file in files if file not in filled),
        num_bytes=num_bytes * stored // max(read, 1),
        num_documents=num_documents * stored // max(read, 1),
        sample=tuple(sample),
    )


def split_list(words: str) -> list[str]:
    """Split ``[a,b]`` or ``a,b``, items quoted or not; a path that exists is taken whole."""
    if not words.strip("[] "):
        raise RecipeError("data", "no file is named", "write data='texts/*.txt'")
    if os.path.lexists(words):
        return [words]
    if words.startswith("[") and words.endswith("]"):
        words = words[1:-1]
    items = (
        first or second or plain.strip() for first, second, plain in LIST_ITEM.findall(words)
    )
    return [item if os.path.lexists(item) else _expand_home(item) for item in items if item]


def _expand_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 (pathlib raises for ~ without a user)


def source_names(patterns: list[str]) -> list[str]:
    """Name sources by what tells them apart: a file's stem, else its folder."""
    if len(patterns) == 1:
        return [TEXT]
    names: list[str] = []
    for pattern in patterns:
        place = Path(pattern)
        plain = place.parent.name if re.search(r"[*?\[]", place.name) else place.name
        stem = re.sub(r"[^a-z0-9]+", "_", plain.split(".")[0].lower()).strip("_") or TEXT
        again = sum(re.fullmatch(rf"{stem}(_\d+)?", one) is not None for one in names)
        names.append(f"{stem}_{again + 1}" if again else stem)
    return names


def as_written(place: Path) -> str:
    """Return a place as a recipe names it: relative if it lies below the working folder."""
    here = Path.cwd()
    whole = Path(os.path.normpath(here / place))
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


def as_pattern(pattern: str) -> str:
    """Write a pattern as a recipe names it, where ``${`` refers to a key and ``~`` to a home.

    Raises:
        RecipeError: it holds a character that no recipe may hold.
    """
    written = as_written(Path(pattern))
    if printable(written) != written:
        problem = f"{written!r} has a character that no recipe may hold"
        raise RecipeError("data", problem, "rename it, or write ? in its place")
    if "${" in written:
        written = glob.escape(written) if os.path.lexists(pattern) else written
        written = written.replace("${", "[$]{")
    return f"./{written}" if written.startswith("~") else written


def trained_pieces(num_bytes: int, parameters: int | None) -> int:
    """Choose a vocabulary that text and model support, a power of two.

    A piece is worth its row if it is seen often, and if the rows leave room for layers: larger
    models want larger vocabularies (Tao et al. 2024, arXiv 2407.13623). The smallest has the
    bytes and as many merges. Without ``parameters`` they follow from the text, roughly.
    """
    supported = min(
        num_bytes // BYTES_OF_A_PIECE, (parameters or num_bytes // 20) // PARAMETERS_OF_A_PIECE
    )
    return min(max(1 << max(1, supported).bit_length() - 1, FEWEST_PIECES), MOST_PIECES)


def measure_tokens(
    text: GivenText | None,
    tokenizer: GivenTokenizer | None,
    pieces: int,
    settings: Mapping[str, Any],
) -> tuple[int, float]:
    """Return the size of the vocabulary, and the bytes of text that a token stands for.

    Without a tokenizer one with these ``settings`` is trained on the sample: with fewer pieces
    if the text supports no more. Without text a quarter of a byte is taken for each doubling of
    the vocabulary: English is 3.9 bytes a token with GPT-2's 50,257 pieces.
    """
    if text is None:
        pieces = tokenizer.pieces if tokenizer else pieces
        return pieces, 0.25 * (pieces.bit_length() - 1)
    if tokenizer is not None:
        engine = _open(tokenizer.folder / FILE)
        texts = [document.text for document in text.sample]
        with refuse_panics(tokenizer.folder / FILE):
            encoded = engine.encode_batch(texts, add_special_tokens=False)
        return tokenizer.pieces, _bytes_per_token(texts, encoded)
    from components.data.byte_bpe import ByteBPE  # slow: numpy

    split = choose_split(measure_groups(text.sample), MOST_HELD_OUT)
    texts = [*filter(None, map(split.train_text, text.sample))]
    trained, counted = (texts, texts) if text.whole else (texts[::2], texts[1::2] or texts)
    least = NUM_BYTES + len(settings["first_pieces"]) + len(settings["last_pieces"])
    halves = (pieces >> shift for shift in range(pieces.bit_length()))
    for pieces in [*(size for size in halves if size >= FEWEST_PIECES), *FEWER_PIECES, least]:
        engine = ByteBPE(**{**settings, "vocab_size": pieces})
        try:
            with TemporaryDirectory() as folder:
                engine.train(trained, Path(folder))
            break
        except RecipeError:  # so little text supports fewer
            continue
    return pieces, _bytes_per_token(counted, engine.encode(counted))


def _bytes_per_token(texts: Sequence[str], encoded: Sequence[Any]) -> float:
    """Divide the bytes of texts by their tokens, the end of each document included."""
    return sum(len(text.encode()) for text in texts) / sum(len(ids) + 1 for ids in encoded)


def read_tokenizer(folder: Path) -> GivenTokenizer:
    """Read a byte-level BPE, as `tokenizers` and `transformers` save it.

    Raises:
        RecipeError: there is none, it is of another kind, would cut texts short, or does not
            tell how a document ends.
    """
    where = "tokenizer"
    if not folder.is_dir():
        remedy = f"name the folder that holds {FILE}, {TRAINING}"
        raise RecipeError(where, f"there is no folder {folder}", remedy)
    if (folder / SENTENCEPIECE).is_file():
        problem = f"{folder} holds a SentencePiece model, of which no recipe is written here"
        remedy = "describe it as conf/tokenizer/unigram_eu24.yaml does, in a recipe with "
        raise RecipeError(where, problem, f"{remedy}data.tokenizer_folder={folder}; {TRAINING}")
    if not (folder / FILE).is_file():
        problem, remedy = f"{folder} holds no {FILE}", "save it with save_pretrained(FOLDER), "
        raise RecipeError(where, problem, remedy + TRAINING)
    engine = _open(folder / FILE)
    check_engine(str(folder / FILE), engine)
    pieces = engine.get_vocab_size()
    eod = _end_of_document(folder, engine)
    index = engine.token_to_id(eod)
    at_end = index >= MOST_NAMED
    around = range(index, pieces) if at_end else range(index + 1)
    named = [engine.id_to_token(one) for one in around]
    if len(named) > MOST_NAMED or None in named or pieces < NUM_BYTES + len(named):
        problem = f"{eod!r} has id {index:,} of {pieces:,} in {folder / FILE}"
        remedy = f"it has to be one of the first or last {MOST_NAMED}, without gaps"
        raise RecipeError(where, problem, f"{remedy}; {TRAINING}")
    check_end(str(folder / FILE), engine, eod)
    first, last = ([], named) if at_end else (named, [])
    keys = {"vocab_size": pieces, "first_pieces": first, "last_pieces": last, "eod": eod}
    return GivenTokenizer(folder, pieces, keys)


def _open(file: Path) -> Any:
    return open_engine(file, FETCH)


def _read_settings(file: Path) -> Mapping[str, Any]:
    """Read what `transformers` keeps beside a tokenizer: of numbers it knows no bounds."""
    try:
        tree = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(str(file), f"cannot be read: {error}", "save it again") from None
    return tree if isinstance(tree, dict) else {}


def _end_of_document(folder: Path, engine: Any) -> str:
    """Find the piece that ends a document: the one named ``eos_token``, or the likeliest."""
    for name in (CONFIG, SPECIALS):
        if (folder / name).is_file():
            named = _read_settings(folder / name).get("eos_token")
            named = named.get("content") if isinstance(named, dict) else named
            if isinstance(named, str) and engine.token_to_id(named) is not None:
                return named
    added = engine.get_added_tokens_decoder().values()
    special = [piece.content for piece in added if piece.special]
    known = [piece for piece in ENDS if piece in {one.content for one in added}]
    if found := known or (special if len(special) == 1 else []):
        return str(found[0])
    problem = f"{folder / FILE} names no piece that ends a document"
    remedy = "save it by PreTrainedTokenizerFast(tokenizer_object=..., eos_token='...')"
    raise RecipeError("tokenizer", problem, f"{remedy}.save_pretrained(FOLDER)")
