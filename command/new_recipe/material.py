"""What the user gives for a new recipe: files of text, and a tokenizer or none."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from data_prep.read import COMPRESSIONS, LocalFile
from data_prep.sources import open_files

TRAIN = "train"  # tokenizer=train
TEXT = "text"  # the source, where there is one
LEAST_BYTES = 20_000
EXPANDED = 4  # times: English text compressed by gzip or Zstandard, roughly
FEWEST_PIECES, MOST_PIECES = 512, 32_768
BYTES_OF_A_PIECE, PARAMETERS_OF_A_PIECE = 400, 1_000
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 200, 2_000
NUM_BYTES = 256
# Pieces that a recipe lists to say where the end of a document stands; Llama 3 has 256 special.
MOST_NAMED = 256
FILE, CONFIG, SENTENCEPIECE = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
SPECIALS = "special_tokens_map.json"
ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|eos|>", "<eod>", "<|end_of_text|>", "[EOS]")
TRAINING = "or let a tokenizer be trained: tokenizer=train"


@dataclass(frozen=True)
class GivenText:
    """Patterns by source, the files that they name, and about how many bytes of text."""

    sources: Mapping[str, str]
    files: tuple[LocalFile, ...]
    num_bytes: int


@dataclass(frozen=True)
class GivenTokenizer:
    """A folder whose ``tokenizer.json`` was read, and the keys that describe it in a recipe."""

    folder: Path
    pieces: int
    keys: Mapping[str, Any]


def find_text(words: str) -> GivenText:
    """Find the files of ``data=``: one pattern, or a list of which each is a source.

    Raises:
        RecipeError: no such file, one that is named twice or is no text, or too little text.
    """
    patterns = [str(Path(one).expanduser()) for one in split_list(words)]
    names = source_names(patterns)
    files: dict[Path, LocalFile] = {}
    for pattern in patterns:
        for file in open_files((pattern,), "data", "text"):
            if (place := file.path.resolve()) in files:
                raise RecipeError("data", f"{file.path} is named twice", "name each file once")
            files[place] = file
    num_bytes = sum(map(_text_bytes, files.values()))
    if num_bytes < LEAST_BYTES:
        problem = f"{len(files)} files of {num_bytes:,} bytes are too little to train on"
        raise RecipeError("data", problem, f"name {LEAST_BYTES:,} bytes of text at least")
    sources = {name: as_written(Path(one)) for name, one in zip(names, patterns, strict=True)}
    return GivenText(sources, tuple(files.values()), num_bytes)


def split_list(words: str) -> list[str]:
    """Split ``[a,b]`` or ``a,b``; a path that exists is taken whole."""
    if not words:
        raise RecipeError("data", "no file is named", "write data='texts/*.txt'")
    if Path(words).exists():
        return [words]
    return [one for part in words.strip("[]").split(",") if (one := part.strip(" '\""))]


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


def _text_bytes(file: LocalFile) -> int:
    packed = file.path.suffix in {*COMPRESSIONS, ".parquet"}
    return file.path.stat().st_size * (EXPANDED if packed else 1)


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


def bytes_per_token(
    text: GivenText | None, tokenizer: GivenTokenizer | None, pieces: int
) -> float:
    """Estimate the bytes that a token stands for: counted on a sample where that can be.

    A tokenizer that is still to be trained is taken to gain a quarter of a byte with each
    doubling: English is 3.9 bytes a token with GPT-2's 50,257 pieces.
    """
    if text is None or tokenizer is None:
        return 0.25 * (pieces.bit_length() - 1)
    documents = chain.from_iterable(islice(one.documents(), 50) for one in text.files)
    texts = [one.text[:SAMPLE_CHARACTERS] for one in islice(documents, SAMPLE_DOCUMENTS)]
    from components.data.tokenizer_file import panics_refused

    engine = _open(tokenizer.folder / FILE)
    with panics_refused(tokenizer.folder / FILE):
        encoded = engine.encode_batch(texts, add_special_tokens=False)
    num_bytes = sum(len(one.encode()) for one in texts)
    return num_bytes / max(1, sum(len(one.ids) for one in encoded))


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
    from components.data.engine_check import check_end, check_engine  # loads tokenizers

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
    from components.convert.tokenizer import FETCH
    from components.data.tokenizer_file import open_engine  # loads SentencePiece, too

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
