"""Trusted paths: folders of named options and recipes, and which files are the user's own.

Recipes and group options are found by name in this clone and in the private folder,
``kochbuch/`` in the user's configuration. Families of recipes or models have subfolders, whose
names are not part of option names. A file is the user's own if its real path is below
``recipes/`` of the clone or below the private folder.
"""

import os
import re
from pathlib import Path

from cluster.user import private_folder
from components.errors import RecipeError

CLONE = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
RECIPE = "recipe"  # the group whose files are in recipes/, not in conf/
PARTS = "parts"  # folder of a group with components of its options, not options


def conf_folder() -> Path:
    """Return the folder of this repository's groups."""
    return CLONE / "conf"


def recipes_folder() -> Path:
    """Return the folder of this clone's recipes, which are the user's own."""
    return CLONE / "recipes"


def group_names() -> list[str]:
    """List the groups: one for each folder of ``conf/``, and the recipes."""
    return sorted([RECIPE, *(folder.name for folder in conf_folder().glob("*/"))])


def option_names(group: str) -> list[str]:
    """List the options of a group, from this repository and the private folder."""
    files = (file for folder in _folders(group) for file in folder.glob("*.yaml"))
    return sorted({file.stem for file in files if NAME.fullmatch(file.stem)})


def find_option(group: str, name: str) -> Path:
    """Find the file of an option that :func:`option_names` lists; refuse two of a name."""
    files = [folder / f"{name}.yaml" for folder in _folders(group)]
    existing = [file for file in files if os.path.lexists(file)]
    if len(existing) > 1:
        problem = f"two files define {name!r}: {existing[0]} and {existing[1]}"
        raise RecipeError(group, problem, f"rename yours: {existing[1]}")
    return (existing or files)[0]


def _folders(group: str) -> list[Path]:
    """List the folders of a group's options, this repository's first."""
    inside = Path("recipes") if group == RECIPE else Path("conf") / group
    return [
        folder
        for place in (CLONE / inside, private_folder() / inside)
        for folder in (place, *sorted(place.glob("*/")))
        if folder.name != PARTS
    ]


def is_trusted(file: Path) -> bool:
    """Return whether a file's real path is in one of the user's own folders."""
    real = real_path(file)
    folders = (recipes_folder(), private_folder())
    return any(real.is_relative_to(real_path(folder)) for folder in folders)


def real_path(path: Path) -> Path:
    """Resolve a path's links. A circular link, which pathlib refuses, yields itself."""
    return Path(os.path.realpath(path))
