"""Places of the user's own: what has a name, in which folder it lies, and whose a file is.

Recipes and options of groups are found by name in this clone and in the private folder,
``kochbuch/`` in the user's configuration, in a folder or one below it: a family of recipes or
of models has a folder, and no name says which. A file is the user's own by where it really
lies, with links followed, not by how it was named: below ``recipes/`` of the clone, below the
private folder, or below a folder that the private ``own.yaml`` lists.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster.user import private_folder
from command.files.yaml_file import read_data
from components.errors import RecipeError

CLONE = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
RECIPE = "recipe"  # the group whose files lie in recipes/ and not in conf/
PARTS = "parts"  # of a group: what its options are made of, and no option itself
OWN_FILE = "own.yaml"


def conf_folder() -> Path:
    """Return the folder of this repository's groups."""
    return CLONE / "conf"


def group_names() -> list[str]:
    """Name the groups: one for each folder of ``conf/``, and the recipes."""
    return sorted([RECIPE, *(folder.name for folder in conf_folder().glob("*/"))])


def option_names(group: str) -> list[str]:
    """Name the options of a group: this repository's and the private ones."""
    files = (file for folder in _folders(group) for file in folder.glob("*.yaml"))
    return sorted({file.stem for file in files if NAME.fullmatch(file.stem)})


def find_option(group: str, name: str) -> Path:
    """Find the file of an option that :func:`option_names` lists.

    Raises:
        RecipeError: there are two of that name, as one here and one in the private folder.
    """
    files = [folder / f"{name}.yaml" for folder in _folders(group)]
    found = [file for file in files if os.path.lexists(file)]
    if len(found) > 1:
        problem = f"there are two {name!r}: {found[0]} and {found[1]}"
        other = found[1].with_stem(f"{name}_2")
        remedy = f"rename yours: mv {shlex.quote(str(found[1]))} {shlex.quote(str(other))}"
        raise RecipeError(group, problem, remedy)
    return (found or files)[0]


def is_private_option(file: Path) -> bool:
    """Return whether an option's file is the user's, and not one of this repository."""
    return not file.is_relative_to(conf_folder())


def is_of_family(group: str, file: Path) -> bool:
    """Return whether an option of this repository lies in a folder below its group's."""
    return file.parent.parent == conf_folder() / group


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
    """Return whether a file really lies in a place of the user's own.

    Raises:
        RecipeError: ``own.yaml`` would have to be asked, and is wrong.
    """
    near = [CLONE / "recipes", private_folder()]
    return _is_below(file, near) or _is_below(file, listed_folders())


def _is_below(file: Path, folders: Sequence[Path]) -> bool:
    real = real_path(file)
    return any(real.is_relative_to(real_path(folder)) for folder in folders)


def real_path(path: Path) -> Path:
    """Follow the links of a path; one in a circle leads to itself, which pathlib refuses."""
    return Path(os.path.realpath(path))


def listed_folders() -> list[Path]:
    """Read the folders of ``own.yaml``; one that is not there holds nothing.

    Raises:
        RecipeError: the file is wrong, or lists a folder where others' files lie, too.
    """
    if not os.path.lexists(file := private_folder() / OWN_FILE):
        return []
    sent = read_data(file, OWN_FILE)
    folders = sent.tree.get("folders")
    if sent.tree.keys() != {"folders"} or not isinstance(folders, list):
        remedy = "write one line: folders: [/scratch/me/recipes]"
        raise RecipeError(str(file), "it has another form", remedy)
    return [_checked(text, file) for text in folders]


def _checked(text: object, file: Path) -> Path:
    if not isinstance(text, str) or "\0" in text:
        raise RecipeError(str(file), f"{text!r} is no folder", "write its path in quotes")
    folder = Path(os.path.expanduser(text))  # noqa: PTH111 (an unknown ~user stays as it is)
    for problem in _faults(folder):
        remedy = "list the folder in which your recipes lie, and nothing else"
        raise RecipeError(str(file), f"{text!r} {problem}", remedy)
    return folder


def _faults(folder: Path) -> Iterator[str]:
    """Tell why a folder cannot be the user's own alone."""
    if not folder.is_absolute():
        yield "is no absolute path"
    real = real_path(folder)
    if os.path.exists(real) and real.stat().st_mode & stat.S_IWOTH:  # noqa: PTH110 (never raises)
        yield "is a folder in which anybody may write"
    for place, whose in ((CLONE, "this repository"), (_home(), "your home")):
        if place is not None and real_path(place).is_relative_to(real):
            yield f"holds {whose}, and with it whatever was received there"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # nobody knows where it is
        return None


def trust_command(files: Sequence[Path]) -> str:
    """Return the one command that makes received files the user's own."""
    moved = [real_path(file) for file in files]
    place = CLONE / "recipes"
    if len(moved) == 1 and (place / moved[0].name).exists():
        place /= f"{moved[0].stem}_2.yaml"  # nothing is overwritten
    return shlex.join(["mv", *map(str, moved), f"{place}{'' if place.suffix else '/'}"])
