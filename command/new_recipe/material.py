"""Text and tokenizer that the user provides for a new recipe."""

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

import yaml

from command.composition.conf_groups import compose_group
from components.convert.tokenizer import FETCH
from components.data.byte_bpe import ByteBPE
from components.data.tokenizer_file import check_end, check_engine, open_engine, refuse_panics
from components.errors import RecipeError
from components.terminal import escape_invisible, log_line
from data_prep.read import COMPRESSIONS, TABLES, Document, LocalFile, describe_skipped
from data_prep.sources import choose_split, measure_groups, open_files

FAMILY: Mapping[str, str] = yaml.safe_load(
    Path(__file__).with_name("family.yaml").read_text("utf-8")
)
TRAIN = "train"  # tokenizer=train
TEXT = "text"  # the only source's name, and the preferred field of records
LEAST_BYTES = 20_000
COUNTED_BYTES = 1 << 27  # per source; the rest is extrapolated from the file sizes
SAMPLE_BYTES = 1 << 22  # per source, for a tokenizer
FEWEST_PIECES, MOST_PIECES = 512, 32_768
FEWER_PIECES = (384, 320, 288)  # for a text with few distinct words
MOST_HELD_OUT = 0.1
BYTES_OF_A_PIECE, PARAMETERS_OF_A_PIECE = 400, 1_000
NUM_BYTES = 256
LIST_ITEM = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^,]+))\s*(?:,|$)""")
# Pieces that a recipe lists to locate the end-of-document piece; Llama 3 has 256 special.
MOST_NAMED = 256
FILE, CONFIG, SENTENCEPIECE = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
SPECIALS = "special_tokens_map.json"
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|eos|>", "<eod>", "<|end_of_text|>", "[EOS]")
TRAINING = "or train a tokenizer: tokenizer=train"


@dataclass(frozen=True)
class GivenText:
    """Source keys, amount of text and a sample; no sources means the standard library."""

    sources: Mapping[str, Mapping[str, Any]]
    num_bytes: int
    num_documents: int | None
    sample: tuple[Document, ...] = ()

    @property
    def file_patterns(self) -> list[str]:
        return [keys["files"][0] for keys in self.sources.values()]

    @property
    def is_whole(self) -> bool:
        return sum(len(document.text.encode()) for document in self.sample) == self.num_bytes


LIBRARY = GivenText({}, num_bytes=12_000_000, num_documents=None)


@dataclass(frozen=True)
class GivenTokenizer:
    """A folder with ``tokenizer.json``, and the recipe keys that describe it."""

    folder: Path
    pieces: int
    keys: Mapping[str, Any]


def find_text(words: str | None, column: str | None = None) -> GivenText:
    """Find and read the files of ``data=``: one pattern, or a list with a source for each.

    Repeated files, several possible text fields, or too little text are a RecipeError.
    """
    if words is None and column is not None:
        raise RecipeError("column", "column requires data", "write data=FILES")
    if words is None:
        return LIBRARY
    patterns = split_list(words)
    sources, places, columns = dict[str, Mapping[str, Any]](), set[Path](), set[str]()
    num_bytes, num_documents, sample, empty = 0, 0, list[Document](), list[str]()
    for name, pattern in zip(source_names(patterns), patterns, strict=True):
        files = list(open_files((pattern,), "data", TEXT))
        for file in files:
            if (place := file.path.resolve()) in places:
                raise RecipeError("data", f"{file.path} is listed twice", "list each file once")
            places.add(place)
        chosen = choose_column(files, pattern, column)
        columns.add(chosen)
        own_column = {} if chosen == TEXT else {"column": chosen}
        sources[name] = {"files": [as_pattern(pattern)], **own_column}
        files = [replace(file, column=chosen) for file in files]
        filled = [file for file in files if not file.is_empty()]
        empty += [file.name for file in files if file not in filled]
        read_bytes, read_documents, documents = _read_source(filled)
        num_bytes, num_documents = num_bytes + read_bytes, num_documents + read_documents
        sample += documents
    if column is not None and column not in columns:
        raise RecipeError("column", f"no record of data= has text in {column!r}", "correct it")
    if num_bytes < LEAST_BYTES:
        problem = f"{len(places)} files of {num_bytes:,} bytes are too few to train on"
        raise RecipeError("data", problem, f"provide at least {LEAST_BYTES:,} bytes of text")
    if empty:
        log_line(describe_skipped(empty))
    return GivenText(sources, num_bytes, num_documents, tuple(sample))


def choose_column(files: Sequence[LocalFile], pattern: str, wanted: str | None) -> str:
    """Choose the records' field of text: ``wanted``, ``text``, or the only text field."""
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
    remedy = "choose the field to train on, in all files: column=NAME"
    raise RecipeError("column", problem, remedy)


def _read_source(filled: Sequence[LocalFile]) -> tuple[int, int, list[Document]]:
    """Return bytes and documents of a source, extrapolated if it is large, and a sample."""
    sizes = {file.path: file.path.stat().st_size for file in filled}
    stored = sum(sizes.values())
    sample_bytes = SAMPLE_BYTES if stored <= SAMPLE_BYTES else SAMPLE_BYTES // len(filled)
    read = num_bytes = num_documents = 0
    sample: list[Document] = []
    for file in filled:
        size, left = sizes[file.path], sample_bytes
        if num_bytes >= COUNTED_BYTES:
            break
        if size > COUNTED_BYTES and file.path.suffix not in (*COMPRESSIONS, *TABLES):
            file, size = replace(file, end=COUNTED_BYTES), COUNTED_BYTES
        read += size
        for document in file.iter_documents():
            num_bytes += len(document.text.encode())
            num_documents += 1
            if left > 0:
                sample.append(replace(document, text=document.text[:left]))
                left -= len(document.text)
    return num_bytes * stored // max(read, 1), num_documents * stored // max(read, 1), sample


def split_list(words: str) -> list[str]:
    """Split ``[a,b]`` or ``a,b`` with optional quotes. An existing path is not split."""
    if not words.strip("[] "):
        raise RecipeError("data", "data= is empty", "write data='texts/*.txt'")
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
    """Name each source by its file's stem, or by its folder if the pattern has wildcards."""
    if len(patterns) == 1:
        return [TEXT]
    names: list[str] = []
    for pattern in patterns:
        place = Path(pattern)
        plain = place.parent.name if re.search(r"[*?\[]", place.name) else place.name
        stem = re.sub(r"[^a-z0-9]+", "_", plain.split(".")[0].lower()).strip("_") or TEXT
        again = sum(re.fullmatch(rf"{stem}(_\d+)?", name) is not None for name in names)
        names.append(f"{stem}_{again + 1}" if again else stem)
    return names


def as_written(place: Path) -> str:
    """Return a path for a recipe, relative if it is below the working folder."""
    here = Path.cwd()
    whole = Path(os.path.normpath(here / place))
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


def as_pattern(pattern: str) -> str:
    """Return a pattern for a recipe, with ``${`` (a reference) and ``~`` (a home) escaped."""
    written = as_written(Path(pattern))
    if escape_invisible(written) != written:
        problem = f"{written!r} contains a character that a recipe cannot contain"
        raise RecipeError("data", problem, "rename the file, or write ? for it")
    if "${" in written:
        written = glob.escape(written) if os.path.lexists(pattern) else written
        written = written.replace("${", "[$]{")
    return f"./{written}" if written.startswith("~") else written


def trained_pieces(num_bytes: int, parameters: int | None) -> int:
    """Choose a vocabulary size, a power of two, for the amount of text and the model size.

    A piece is worth its row if it occurs often, and if the rows leave parameters for layers.
    Larger models need larger vocabularies (Tao et al. 2024, arXiv 2407.13623). The smallest
    vocabulary has the bytes and an equal number of merges. Without ``parameters`` the model
    size is estimated from the text.
    """
    supported = min(
        num_bytes // BYTES_OF_A_PIECE, (parameters or num_bytes // 20) // PARAMETERS_OF_A_PIECE
    )
    return min(max(1 << max(1, supported).bit_length() - 1, FEWEST_PIECES), MOST_PIECES)


def measure_tokens(
    text: GivenText, tokenizer: GivenTokenizer | None, pieces: int
) -> tuple[int, float]:
    """Return the vocabulary size, and the mean bytes of text per token.

    Without a tokenizer a BPE is trained on the sample, with fewer pieces if the text supports
    no more. Without text the estimate is a quarter of a byte per doubling of the vocabulary:
    English has 3.9 bytes per token with GPT-2's 50,257 pieces.
    """
    if not text.sources:
        pieces = tokenizer.pieces if tokenizer else pieces
        return pieces, 0.25 * (pieces.bit_length() - 1)
    if tokenizer is not None:
        engine: Any = open_engine(tokenizer.folder / FILE, FETCH)
        texts = [document.text for document in text.sample]
        with refuse_panics(tokenizer.folder / FILE):
            encoded = engine.encode_batch(texts, add_special_tokens=False)
        return tokenizer.pieces, _bytes_per_token(texts, encoded)
    split = choose_split(measure_groups(text.sample), MOST_HELD_OUT)
    texts = [*filter(None, map(split.train_text, text.sample))]
    trained, counted = (texts, texts) if text.is_whole else (texts[::2], texts[1::2] or texts)
    settings = compose_group("tokenizer", FAMILY["tokenizer"])
    del settings["_target_"]
    least = NUM_BYTES + len(settings["first_pieces"]) + len(settings["last_pieces"])
    halves = (pieces >> shift for shift in range(pieces.bit_length()))
    for pieces in [*(size for size in halves if size >= FEWEST_PIECES), *FEWER_PIECES, least]:
        engine = ByteBPE(**{**settings, "vocab_size": pieces})
        try:
            with TemporaryDirectory() as folder:
                engine.train_on_texts(trained, Path(folder))
            break
        except RecipeError:  # too little text for these pieces
            continue
    return pieces, _bytes_per_token(counted, engine.encode(counted))


def _bytes_per_token(texts: Sequence[str], encoded: Sequence[Any]) -> float:
    """Return the mean bytes per token, with one end-of-document token per text."""
    return sum(len(text.encode()) for text in texts) / sum(len(ids) + 1 for ids in encoded)


def read_tokenizer(folder: Path) -> GivenTokenizer:
    """Read a saved byte-level BPE; refuse truncation or a missing end-of-document piece."""
    where = "tokenizer"
    if not folder.is_dir():
        remedy = f"choose a folder with {FILE}, {TRAINING}"
        raise RecipeError(where, f"{folder} is not a folder", remedy)
    if (folder / SENTENCEPIECE).is_file():
        problem = f"{folder} has a SentencePiece model, which action=new does not support"
        remedy = "write a recipe with keys as in conf/tokenizer/unigram_eu24.yaml and "
        raise RecipeError(where, problem, f"{remedy}data.tokenizer_folder={folder}; {TRAINING}")
    if not (folder / FILE).is_file():
        problem, remedy = f"{folder} has no {FILE}", "save it with save_pretrained(FOLDER), "
        raise RecipeError(where, problem, remedy + TRAINING)
    engine: Any = open_engine(folder / FILE, FETCH)
    check_engine(str(folder / FILE), engine)
    pieces = engine.get_vocab_size()
    eod = _end_of_document(folder, engine)
    index = engine.token_to_id(eod)
    at_end = index >= MOST_NAMED
    around = range(index, pieces) if at_end else range(index + 1)
    named = [engine.id_to_token(token_id) for token_id in around]
    if len(named) > MOST_NAMED or None in named or pieces < NUM_BYTES + len(named):
        problem = f"{eod!r} has id {index:,} of {pieces:,} in {folder / FILE}"
        remedy = f"the id must be one of the first or last {MOST_NAMED}, without gaps"
        raise RecipeError(where, problem, f"{remedy}; {TRAINING}")
    check_end(str(folder / FILE), engine, eod)
    first, last = ([], named) if at_end else (named, [])
    keys = {"vocab_size": pieces, "first_pieces": first, "last_pieces": last, "eod": eod}
    return GivenTokenizer(folder, pieces, keys)


def _read_settings(file: Path) -> Mapping[str, Any]:
    """Read a `transformers` settings file of a tokenizer. Its numbers may be huge."""
    try:
        tree = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(str(file), f"cannot be read: {error}", "save it again") from None
    return tree if isinstance(tree, dict) else {}


def _end_of_document(folder: Path, engine: Any) -> str:
    """Return the end-of-document piece: ``eos_token`` if named, else the likeliest piece."""
    for name in (CONFIG, SPECIALS):
        if (folder / name).is_file():
            named = _read_settings(folder / name).get("eos_token")
            named = named.get("content") if isinstance(named, dict) else named
            if isinstance(named, str) and engine.token_to_id(named) is not None:
                return named
    added = engine.get_added_tokens_decoder().values()
    special = [piece.content for piece in added if piece.special]
    known = [piece for piece in ENDS if piece in {piece.content for piece in added}]
    if ends := known or (special if len(special) == 1 else []):
        return str(ends[0])
    problem = f"{folder / FILE} has no piece that ends a document"
    remedy = "save it with PreTrainedTokenizerFast(tokenizer_object=..., eos_token='...')"
    raise RecipeError("tokenizer", problem, f"{remedy}.save_pretrained(FOLDER)")
