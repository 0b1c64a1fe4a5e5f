"""The corpora that need no network: this repository's parallel text, the interpreter's library.

Both corpora of the standard library put a module's documents into one group, its path: what is
held out as documentation is then not trained on as source code.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from components.data.files import FileRecord, HashFile, TextHash, hash_file
from components.errors import RecipeError
from data_prep.read import Document, Input, LocalFile

CORPORA = Path(__file__).resolve().parents[1] / "corpora"
LIBRARY = Path(sysconfig.get_path("stdlib"))
TOPICS = LIBRARY / "pydoc_data" / "topics.py"
EXCLUDED = frozenset({
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
})
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


def licence_of(name: str) -> str:
    """Return the licence of an embedded corpus (LICENSE, corpora/)."""
    return "PSF-2.0" if name.startswith("python/") else "CC0-1.0"


@cache
def library_source() -> tuple[Document, ...]:
    """Read the modules, a document each, in the order of their paths.

    Kept in memory after the first call (about 10 MB), since a preparation reads it four times.
    """
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
