"""Prepared data of a recipe: find the folder, return its hashes, and check every byte.

The preparation notes the folder for each recipe, because computing it again would require
reading all raw text.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from components.config.key_groups import KeyGroup, split_by_group
from components.config.recipe import Recipe
from components.config.schema.earlier_names import restore_names
from components.data.files import replace_atomically, verify_file
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.json_file import open_regular
from components.sharing.lock import PreparedHashes, without_own_folders

NOTES = ".prepared_for"  # in data.folder: one file per recipe, which contains the folder's name
STAGED = ".staged_for"  # the same for data staged without their raw text
SECTIONS = ("data.", "tokenizer.")
MOST_NAME_BYTES = 4096


def note_prepared(recipe: Recipe, folder: Path, notes: str = NOTES) -> None:
    """Note next to ``folder`` that it contains the data of ``recipe``."""
    note = folder.parent / notes / _digest(recipe)
    note.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(note) as file:
        file.write(folder.name.encode())


def find_prepared(recipe: Recipe) -> Path | None:
    """Return the folder staged or prepared for the recipe's data, if any."""
    return find_staged(recipe) or find_staged(recipe, NOTES)


def find_staged(recipe: Recipe, notes: str = STAGED) -> Path | None:
    """Return the folder staged for the recipe's data, if any."""
    note = Path(recipe.data.folder) / notes / _digest(recipe)
    try:
        with open_regular(note) as file:
            name = file.read(MOST_NAME_BYTES).decode().strip()
    except (OSError, ValueError):  # the note is missing or invalid
        return None
    folder = Path(recipe.data.folder) / name
    return folder if Path(name).name == name and folder.is_dir() else None


def describe_prepared(folder: Path) -> PreparedHashes:
    """Return the hashes of a prepared folder; raise a RecipeError without a manifest."""
    manifest = Manifest.from_folder(folder)
    sources = {}
    for name, source in manifest.sources.items():
        # Hashes of the token files in order. Their location does not matter.
        digests = "\n".join(record.sha256 for record in (*source.train, *source.held_out))
        sources[name] = sha256(digests.encode()).hexdigest()
    return PreparedHashes(
        key=manifest.key,
        tokenizer={file.name: file.sha256 for file in manifest.tokenizer.files},
        sources=sources,
    )


def find_damaged(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of a prepared folder that differs from its manifest, with the problem."""
    for record in Manifest.from_folder(folder).list_files():
        try:
            verify_file(folder, record, contents=True)
        except RecipeError as error:
            yield record.name, error.problem


def _digest(recipe: Recipe) -> str:
    """Return a hash of the keys that determine the prepared data."""
    computing = split_by_group(without_own_folders(recipe.model_dump(mode="json")))[
        KeyGroup.MATHEMATICS
    ]
    leaves = restore_names(computing).items()
    own = sorted((key, repr(value)) for key, value in leaves if key.startswith(SECTIONS))
    return sha256(repr(own).encode()).hexdigest()[:16]
