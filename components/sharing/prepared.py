"""Prepared data by content: found again for a recipe, hashed, and checked byte by byte.

Which folder a recipe's data are in is noted when they are prepared: to work it out anew, all
raw text would have to be read.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from components.config.key_groups import KeyGroup, split
from components.config.recipe import Recipe
from components.data.files import replace_atomically, verify_file
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.json_file import open_regular
from components.sharing.lock import PreparedHashes, without_own_folders

NOTES = ".prepared_for"  # in data.folder: one file a recipe's data, with the folder's name
STAGED = ".staged_for"  # the same of data that came without their raw text
SECTIONS = ("data.", "tokenizer.")
MOST_NAME_BYTES = 4096


def note_prepared(recipe: Recipe, folder: Path) -> None:
    """Remember that ``folder`` holds the data of ``recipe``."""
    _write_note(Path(recipe.data.folder) / NOTES, recipe, folder)


def note_staged(recipe: Recipe, folder: Path) -> None:
    """Remember beside ``folder`` that it holds the data of ``recipe``, text or no text."""
    _write_note(folder.parent / STAGED, recipe, folder)


def _write_note(notes: Path, recipe: Recipe, folder: Path) -> None:
    notes.mkdir(parents=True, exist_ok=True)
    with replace_atomically(notes / _digest(recipe)) as file:
        file.write(folder.name.encode())


def find_prepared(recipe: Recipe) -> Path | None:
    """Find the folder that was prepared for these data, if there is one."""
    return find_staged(recipe) or find_staged(recipe, NOTES)


def find_staged(recipe: Recipe, notes: str = STAGED) -> Path | None:
    """Find the folder that was brought here for these data, if there is one."""
    note = Path(recipe.data.folder) / notes / _digest(recipe)
    try:
        with open_regular(note) as file:
            name = file.read(MOST_NAME_BYTES).decode().strip()
    except (OSError, ValueError):  # there is none, or it is not a note
        return None
    folder = Path(recipe.data.folder) / name
    return folder if Path(name).name == name and folder.is_dir() else None


def describe_prepared(folder: Path) -> PreparedHashes:
    """Give the hashes of a prepared folder's manifest, or raise a RecipeError without one."""
    manifest = Manifest.read(folder)
    sources = {}
    for name, source in manifest.sources.items():
        # The token files' hashes in their order: where they lie makes no difference.
        digests = "\n".join(record.sha256 for record in (*source.train, *source.held_out))
        sources[name] = sha256(digests.encode()).hexdigest()
    return PreparedHashes(
        key=manifest.key,
        tokenizer={file.name: file.sha256 for file in manifest.tokenizer.files},
        sources=sources,
    )


def damaged(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of a prepared folder that is not what its manifest says, and how."""
    for record in Manifest.read(folder).files():
        try:
            verify_file(folder, record, contents=True)
        except RecipeError as error:
            yield record.name, error.problem


def _digest(recipe: Recipe) -> str:
    """Hash the keys that decide what the data are."""
    computing = split(without_own_folders(recipe.model_dump(mode="json")))[KeyGroup.MATHEMATICS]
    own = sorted((key, repr(one)) for key, one in computing.items() if key.startswith(SECTIONS))
    return sha256(repr(own).encode()).hexdigest()[:16]
