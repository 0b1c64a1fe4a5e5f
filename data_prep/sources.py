"""Open a recipe's source: find and hash its inputs, and choose its held-out split.

A document's side depends only on a hash of its group. It does not change when documents are
added, and copies of a document are never on both sides. Both embedded corpora of the standard
library put a module's documents into one group, so held-out documentation is not trained on as
source code.
"""

import ast
import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from components.config.schema.data import Source
from components.data.files import FileRecord, HashFile, TextHash, hash_file
from components.errors import RecipeError
from data_prep.read import (
    COMPRESSIONS,
    PLAIN,
    TABLES,
    Document,
    Input,
    LocalFile,
    expand_pattern,
    kind_of,
    read_documents,
)
from data_prep.tables import ArrowFile, HubInput, ParquetFile, find_saved

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
HASH_RANGE = 1 << 64
WHITE_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class HeldOutSplit:
    """Holds out groups whose hash is below ``threshold``, or the end of each document.

    ``inside_fraction`` is the latter's fraction if all documents are in one group, else 0.
    """

    threshold: int
    inside_fraction: float

    def train_text(self, document: Document) -> str:
        """Return the part of ``document`` to train on, empty if there is none."""
        return document.text[: self._cut(document)]

    def held_out_text(self, document: Document) -> str:
        """Return the part of ``document`` to hold out, empty if there is none."""
        return document.text[self._cut(document) :]

    def _cut(self, document: Document) -> int:
        """Count the characters to train on; a cut inside a document is at white space."""
        text = document.text
        if not self.inside_fraction:
            return 0 if group_hash(document) < self.threshold else len(text)
        cut = int(len(text) * (1 - self.inside_fraction))
        space = WHITE_SPACE.search(text, cut)
        return space.start() if space else cut


@dataclass(frozen=True)
class GroupRange:
    """The lowest and highest group hash of a source, and its number of documents."""

    lowest: int
    highest: int
    documents: int


def group_hash(document: Document) -> int:
    """Hash the group of a document to 64 bits."""
    digest = hashlib.blake2b(document.group_text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def measure_groups(documents: Iterable[Document]) -> GroupRange:
    """Read all documents once and return their group range."""
    lowest, highest, count = HASH_RANGE, -1, 0
    for hashed in map(group_hash, documents):
        lowest, highest, count = min(lowest, hashed), max(highest, hashed), count + 1
    return GroupRange(lowest, highest, count)


def choose_split(groups: GroupRange, fraction: float) -> HeldOutSplit:
    """Choose a split that holds out ``fraction`` of the groups, at least one and not all."""
    base = int(fraction * HASH_RANGE)
    inside = fraction if groups.lowest == groups.highest else 0.0
    threshold = min(max(base, groups.lowest + 1), groups.highest)
    return HeldOutSplit(threshold=threshold, inside_fraction=inside)


CORPORA = Path(__file__).resolve().parents[1] / "corpora"
LIBRARY = Path(sysconfig.get_path("stdlib"))
TOPICS = LIBRARY / "pydoc_data" / "topics.py"
EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "pydoc_data"}
EXCLUDED |= {"site-packages", "dist-packages"}
# Generated when the interpreter is built; it contains that machine's paths, not text.
GENERATED = "_sysconfigdata"
# Syntax nodes that may contain a definition: statements, and parts that contain statements.
_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Library(Input):
    """A corpus drawn from the running interpreter's standard library."""

    name: str
    read: Callable[[], tuple[Document, ...]]

    def hash_input(self, hashed: HashFile = hash_file) -> FileRecord:
        """Return the record of the documents, which differ between Python versions."""
        text_hash = hashed.hash_drawn_text(
            f"{self.name} {_origin()}", lambda: _hashed(self.read())
        )
        return FileRecord(self.name, *text_hash)

    def iter_items(self) -> Iterator[Document | RecipeError]:
        yield from self.read()


def open_embedded(name: str, where: str, corpora: Path = CORPORA) -> Input:
    """Return the embedded corpus with the given name; RecipeError if there is none."""
    libraries = {"python/source": library_source, "python/docs": library_docs}
    if name in libraries:
        return Library(name=name, read=libraries[name])
    texts = {
        file.relative_to(corpora).with_suffix("").as_posix(): file
        for file in sorted(corpora.glob("*/*.txt"))
    }
    if name not in texts:
        known = ", ".join([*libraries, *texts])
        raise RecipeError(where, f"unknown embedded corpus {name!r}", f"choose from {known}")
    return LocalFile(path=texts[name], name=name, where=where, column="text")


def embedded_names(name: str, corpora: Path = CORPORA) -> list[str]:
    """Return the names of all texts in a folder of ``corpora/``; else only ``name``."""
    folders = {folder.name: folder for folder in corpora.iterdir() if folder.is_dir()}
    texts = sorted(folders[name].glob("*.txt")) if name in folders else []
    return [f"{name}/{text.stem}" for text in texts] or [name]


def licence_of(name: str) -> str:
    """Return the license of an embedded corpus (LICENSE, corpora/)."""
    return "PSF-2.0" if name.startswith("python/") else "CC0-1.0"


@cache  # about 10 MB; a preparation reads it four times
def library_source() -> tuple[Document, ...]:
    """Return the modules, one document each, sorted by path."""
    paths = sorted(file.relative_to(LIBRARY) for file in LIBRARY.rglob("*.py"))
    return tuple(
        Document(text, path.as_posix())
        for path in paths
        if not EXCLUDED & set(path.parts)
        and not path.name.startswith(GENERATED)
        and (text := _decoded(LIBRARY / path)).strip()
    )


@cache
def library_docs() -> tuple[Document, ...]:
    """Return the docstrings, one document per module, and the help topics of the language."""
    documents = [
        Document("\n\n".join(docstrings), module.group_text)
        for module in library_source()
        if (docstrings := list(_docstrings(ast.parse(module.text))))
    ]
    if TOPICS.is_file():  # some distributions package it separately
        for statement in ast.parse(TOPICS.read_bytes()).body:
            if isinstance(statement, ast.Assign):
                for name, text in ast.literal_eval(statement.value).items():
                    documents.append(Document(text, f"topic/{name}"))
    return tuple(documents)


@cache
def _origin() -> str:
    """Hash the corpora's source text and this file's code, faster than drawing the corpora."""
    topics = Document(_decoded(TOPICS) if TOPICS.is_file() else "")
    code = Document(_decoded(Path(__file__)))
    return _hashed((*library_source(), topics, code))[0]


def _hashed(documents: Iterable[Document]) -> TextHash:
    digest = hashlib.sha256()
    num_bytes = 0
    for document in documents:
        content = document.text.encode()
        digest.update(len(content).to_bytes(8, "little") + content)
        num_bytes += len(content)
    return digest.hexdigest(), num_bytes


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return ""


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            yield docstring if isinstance(node, ast.Module) else f"{node.name}: {docstring}"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _HOLDERS):  # no expression holds a definition
            yield from _docstrings(child)


@dataclass(frozen=True)
class OpenSource:
    """The inputs of one source and their records; ``groups`` if a stage has counted them."""

    inputs: tuple[Input, ...]
    records: tuple[FileRecord, ...]
    column: str
    groups: GroupRange | None = None

    def describe_content(self) -> list[tuple[str, str | None, str]]:
        """Return what determines the text: contents, formats and column, but not paths."""
        return [(record.sha256, kind_of(record.name), self.column) for record in self.records]

    def empty_inputs(self) -> list[str]:
        """Return the names of the inputs without text, which are skipped."""
        return [text_input.name for text_input in self.inputs if text_input.is_empty()]

    def iter_documents(self) -> Iterator[Document]:
        """Yield all documents, from the start each time."""
        return read_documents(self.inputs)


def open_source(name: str, source: Source, hashed: HashFile = hash_file) -> OpenSource:
    """Find and hash all inputs of a source; ``hashed`` may cache hashes."""
    inputs = find_inputs(name, source)
    records = tuple(text_input.hash_input(hashed) for text_input in inputs)
    return OpenSource(inputs=inputs, records=records, column=source.column)


def find_inputs(name: str, source: Source) -> tuple[Input, ...]:
    """List the inputs of a source: embedded corpus, files, dataset; RecipeError if none."""
    where = f"data.sources.{name}"
    if not NAME.fullmatch(name):
        remedy = "use letters, digits, _ . and - only"
        raise RecipeError(where, f"{name!r} is not valid as a file name", remedy)
    inputs: list[Input] = []
    if source.embedded is not None:
        names = embedded_names(source.embedded)
        inputs += [open_embedded(name, f"{where}.embedded") for name in names]
    inputs += open_files(source.files, f"{where}.files", source.column)
    if source.dataset is not None:
        dataset = source.dataset
        if find_saved(Path(dataset.path), f"{where}.dataset"):
            problem = f"{dataset.path} was written by save_to_disk"
            remedy = f"set {where}.files=[{dataset.path}] instead"
            raise RecipeError(f"{where}.dataset", problem, remedy)
        inputs.append(HubInput(dataset.path, f"{where}.dataset", source.column, dataset))
    if not inputs:
        problem = "has no files, no dataset and no embedded corpus"
        remedy = f"set {where}.files=[...], or remove the source"
        raise RecipeError(where, problem, remedy)
    return tuple(inputs)


def open_files(patterns: tuple[str, ...], where: str, column: str) -> Iterator[LocalFile]:
    """Expand file patterns relative to the current folder; yield each file once.

    Files of a pattern are sorted. A folder that ``save_to_disk`` wrote yields its Arrow files;
    another folder or an unknown suffix is a RecipeError.
    """
    files: dict[Path, None] = {}
    for path in (path for pattern in patterns for path in expand_pattern(pattern, where)):
        saved = find_saved(path, where) if path.is_dir() else [path]
        if saved is None:
            remedy = f"set a pattern such as {path}/*.jsonl"
            raise RecipeError(where, f"{path} is a folder, not a file", remedy)
        files |= dict.fromkeys(saved)
    for path in files:
        kind = kind_of(path.name)
        if kind is None:
            known = ", ".join((*PLAIN, *TABLES))
            problem = f"{path} ends with none of {known} (plus {', '.join(COMPRESSIONS)})"
            raise RecipeError(where, problem, "convert the file, or correct its name")
        if "\\udc" in ascii(str(path)):  # Python's form of bytes that are not UTF-8
            remedy = "rename the file: manifests need UTF-8 names"
            raise RecipeError(where, f"the name {str(path)!a} is not UTF-8", remedy)
        make = {".parquet": ParquetFile, ".arrow": ArrowFile}.get(kind, LocalFile)
        yield make(path=path, name=str(path), where=where, column=column)
