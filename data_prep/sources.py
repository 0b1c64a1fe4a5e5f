"""From a recipe's source to inputs that were found, opened and hashed, and what is held out.

A document's side follows from a hash of its group alone: it does not change when documents are
added, and copies of a document never stand on both sides. Both embedded corpora of the standard
library put a module's documents into one group, its path: what is held out as documentation is
then not trained on as source code.
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
    """Hold out groups whose hash is below ``threshold``, or the end of each document.

    The latter is ``inside_fraction`` where all documents are of one group; else it is 0.
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
        """Count the characters to train on: inside a document, up to the next white space."""
        text = document.text
        if not self.inside_fraction:
            return 0 if group_hash(document) < self.threshold else len(text)
        cut = int(len(text) * (1 - self.inside_fraction))
        space = WHITE_SPACE.search(text, cut)
        return space.start() if space else cut


@dataclass(frozen=True)
class GroupRange:
    """The lowest and highest hash of a source's groups, and how many documents there are."""

    lowest: int
    highest: int
    documents: int


def group_hash(document: Document) -> int:
    """Hash the group to 64 bits."""
    digest = hashlib.blake2b(document.group.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def measure_groups(documents: Iterable[Document]) -> GroupRange:
    """Read all documents once."""
    lowest, highest, count = HASH_RANGE, -1, 0
    for hashed in map(group_hash, documents):
        lowest, highest, count = min(lowest, hashed), max(highest, hashed), count + 1
    return GroupRange(lowest, highest, count)


def choose_split(groups: GroupRange, fraction: float) -> HeldOutSplit:
    """Hold out ``fraction`` of the groups, at least one and not all."""
    base = int(fraction * HASH_RANGE)
    inside = fraction if groups.lowest == groups.highest else 0.0
    threshold = min(max(base, groups.lowest + 1), groups.highest)
    return HeldOutSplit(threshold=threshold, inside_fraction=inside)


CORPORA = Path(__file__).resolve().parents[1] / "corpora"
LIBRARY = Path(sysconfig.get_path("stdlib"))
TOPICS = LIBRARY / "pydoc_data" / "topics.py"
EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "pydoc_data"}
EXCLUDED |= {"site-packages", "dist-packages"}
# Generated when the interpreter is built: paths of the machine that built it, not text.
GENERATED = "_sysconfigdata"
# What may hold a definition: statements, and parts of them that hold statements.
_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass(frozen=True)
class Library(Input):
    """One corpus drawn from the running interpreter's standard library."""

    name: str
    read: Callable[[], tuple[Document, ...]]

    def record(self, hashed: HashFile = hash_file) -> FileRecord:
        """Hash the documents, which differ from one Python version to the next."""
        found = hashed.drawn(f"{self.name} {_origin()}", lambda: _hashed(self.read()))
        return FileRecord(self.name, *found)

    def items(self) -> Iterator[Document | RecipeError]:
        yield from self.read()


def open_embedded(name: str, where: str, corpora: Path = CORPORA) -> Input:
    """Find an embedded corpus by the name that a recipe gives it.

    Raises:
        RecipeError: there is no such corpus.
    """
    libraries = {"python/source": library_source, "python/docs": library_docs}
    if name in libraries:
        return Library(name=name, read=libraries[name])
    texts = {
        file.relative_to(corpora).with_suffix("").as_posix(): file
        for file in sorted(corpora.glob("*/*.txt"))
    }
    if name not in texts:
        known = ", ".join([*libraries, *texts])
        raise RecipeError(where, f"there is no embedded corpus {name!r}", f"known: {known}")
    return LocalFile(path=texts[name], name=name, where=where, column="text")


def embedded_names(name: str, corpora: Path = CORPORA) -> list[str]:
    """Name the texts of a folder of ``corpora/``; any other name stands for itself."""
    folders = {folder.name: folder for folder in corpora.iterdir() if folder.is_dir()}
    texts = sorted(folders[name].glob("*.txt")) if name in folders else []
    return [f"{name}/{text.stem}" for text in texts] or [name]


def licence_of(name: str) -> str:
    """Return the licence of an embedded corpus (LICENSE, corpora/)."""
    return "PSF-2.0" if name.startswith("python/") else "CC0-1.0"


@cache  # about 10 MB; a preparation reads it four times
def library_source() -> tuple[Document, ...]:
    """Read the modules, a document each, in the order of their paths."""
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
    """Read the docstrings, a document for each module, and the help topics of the language."""
    documents = [
        Document("\n\n".join(docstrings), module.group)
        for module in library_source()
        if (docstrings := list(_docstrings(ast.parse(module.text))))
    ]
    if TOPICS.is_file():  # some distributions package it apart
        for statement in ast.parse(TOPICS.read_bytes()).body:
            if isinstance(statement, ast.Assign):
                for name, text in ast.literal_eval(statement.value).items():
                    documents.append(Document(text, f"topic/{name}"))
    return tuple(documents)


@cache
def _origin() -> str:
    """Hash what the corpora are drawn from and the code that draws: quicker than to draw."""
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
    """The inputs of one source and the hash of each; ``groups`` where a pass has told them."""

    inputs: tuple[Input, ...]
    records: tuple[FileRecord, ...]
    column: str
    groups: GroupRange | None = None

    def identity(self) -> list[tuple[str, str | None, str]]:
        """Give what decides the text: contents, formats and column; not where the files lie."""
        return [(record.sha256, kind_of(record.name), self.column) for record in self.records]

    def empty_inputs(self) -> list[str]:
        """Name the inputs without text, which are skipped."""
        return [one.name for one in self.inputs if one.is_empty()]

    def documents(self) -> Iterator[Document]:
        """Read everything, from the beginning each time."""
        return read_documents(self.inputs)


def open_source(name: str, source: Source, hashed: HashFile = hash_file) -> OpenSource:
    """Find and hash all inputs of a source; ``hashed`` may know hashes from before.

    Raises:
        RecipeError: an input that is missing or unreadable, or no input at all.
    """
    inputs = find_inputs(name, source)
    records = tuple(text_input.record(hashed) for text_input in inputs)
    return OpenSource(inputs=inputs, records=records, column=source.column)


def find_inputs(name: str, source: Source) -> tuple[Input, ...]:
    """List the inputs of a source: the embedded corpus, the files, the dataset.

    Raises:
        RecipeError: an input that is missing, or no input at all.
    """
    where = f"data.sources.{name}"
    if not NAME.fullmatch(name):
        remedy = "use letters, digits, _ . and - in it"
        raise RecipeError(where, "the name becomes a file name", remedy)
    inputs: list[Input] = []
    if source.embedded is not None:
        names = embedded_names(source.embedded)
        inputs += [open_embedded(name, f"{where}.embedded") for name in names]
    inputs += open_files(source.files, f"{where}.files", source.column)
    if source.dataset is not None:
        dataset = source.dataset
        if find_saved(Path(dataset.path), f"{where}.dataset"):
            problem = f"{dataset.path} was written by save_to_disk"
            remedy = f"name it under {where}.files=[{dataset.path}] instead"
            raise RecipeError(f"{where}.dataset", problem, remedy)
        inputs.append(HubInput(dataset.path, f"{where}.dataset", source.column, dataset))
    if not inputs:
        problem = "has no text: neither files nor a dataset nor an embedded corpus"
        remedy = f"name your own, {where}.files=[...], or leave the source out"
        raise RecipeError(where, problem, remedy)
    return tuple(inputs)


def open_files(patterns: tuple[str, ...], where: str, column: str) -> Iterator[LocalFile]:
    """Expand file patterns relative to the current folder; each file is given once, sorted.

    A folder that ``save_to_disk`` wrote stands for its files.

    Raises:
        RecipeError: a pattern without a file, another folder, or a suffix that is not read.
    """
    found: dict[Path, None] = {}
    for path in (path for pattern in patterns for path in expand_pattern(pattern, where)):
        saved = find_saved(path, where) if path.is_dir() else [path]
        if saved is None:
            remedy = f"give a pattern, as {path}/*.jsonl"
            raise RecipeError(where, f"{path} is a folder", remedy)
        found |= dict.fromkeys(saved)
    for path in found:
        kind = kind_of(path.name)
        if kind is None:
            known = ", ".join((*PLAIN, *TABLES))
            problem = f"{path} is none of {known}; {', '.join(COMPRESSIONS)} may follow"
            raise RecipeError(where, problem, "convert it, or correct its name")
        if "\\udc" in ascii(str(path)):  # how Python holds bytes that are not UTF-8
            remedy = "rename it: manifests hold names in UTF-8"
            raise RecipeError(where, f"the name {str(path)!a} is not UTF-8", remedy)
        make = {".parquet": ParquetFile, ".arrow": ArrowFile}.get(kind, LocalFile)
        yield make(path=path, name=str(path), where=where, column=column)
