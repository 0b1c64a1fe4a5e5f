"""Options that Hydra does not find by itself, read as data: private ones, those of a family."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from command.files.trusted_paths import (
    conf_folder,
    find_option,
    is_of_family,
    is_private_option,
    is_trusted,
    option_names,
    real_path,
)
from command.files.yaml_file import ReceivedYaml, read_data
from command.recipe.recipe_file import check_content
from components.config.suggestions import nearest
from components.errors import RecipeError

PART = re.compile(r"([a-z0-9_]+/[a-z0-9_]+)@_here_")
PACKAGE = re.compile(r"^# @package (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class StoredConfig:
    """What Hydra is given beside the files of ``conf/``: a text, so that equals are equal."""

    group: str | None
    name: str
    text: str
    package: str

    @property
    def tree(self) -> Any:
        """The content as plain data."""
        return json.loads(self.text)


def read_options(choices: Mapping[str, str]) -> list[StoredConfig]:
    """Read such files among what is chosen, and those that they start from.

    Raises:
        RecipeError: such a file is wrong, is somebody else's, or has a name of this repository.
    """
    return [one for group, name in choices.items() for one in _follow(group, name, ())]


def _follow(group: str, name: str, above: tuple[str, ...]) -> Iterator[StoredConfig]:
    file = find_option(group, name)
    if not (is_private_option(file) or is_of_family(group, file)):
        return
    if name in above:
        problem = f"{group} {name!r} starts from itself: {' -> '.join((*above, name))}"
        raise RecipeError(group, problem, f"mend the defaults of {file}")
    if is_private_option(file) and not is_trusted(file):
        problem = f"{file} leads to {real_path(file)}, which is no place of yours"
        raise RecipeError(group, problem, "put a copy in the place of the link")
    sent = read_data(file, group)
    package = _package(group)
    try:
        parents = list(_check(sent, group, package))
    except RecipeError as error:
        path = error.path.removeprefix(f"{package}.")
        raise sent.told(RecipeError(path, error.problem, error.remedy)) from None
    for parent in parents:
        yield from _follow(group, parent, (*above, name))
    yield StoredConfig(group, name, json.dumps(sent.tree), package)


def _check(sent: ReceivedYaml, group: str, package: str) -> Iterator[str]:
    """Check a file's content; yield the options of its group that it starts from."""
    own = {key: value for key, value in sent.tree.items() if key != "defaults"}
    check_content(own, package)
    entries = sent.tree.get("defaults", [])
    if not isinstance(entries, list):
        raise RecipeError("defaults", f"{entries!r} is no list", "write - NAME")
    known = option_names(group)
    for entry in entries:
        if entry in known:
            yield entry
        elif entry != "_self_" and not _is_part(entry, group):
            problem = f"there is no {group} {entry!r}"
            raise RecipeError("defaults", problem, nearest(str(entry), known))


def _is_part(entry: object, group: str) -> bool:
    """Tell whether this repository has such a part of options, as ``parts/dense@_here_``."""
    part = PART.fullmatch(entry) if isinstance(entry, str) else None
    return part is not None and (conf_folder() / group / f"{part[1]}.yaml").is_file()


def _package(group: str) -> str:
    """Return where a group's options stand in the tree: where most of this repository's do."""
    files = sorted((conf_folder() / group).glob("*.yaml"))
    texts = (file.read_text("utf-8") for file in files)
    found = Counter(match[1] for text in texts if (match := PACKAGE.search(text)))
    return found.most_common(1)[0][0] if found else group
