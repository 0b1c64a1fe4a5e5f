"""Option files that Hydra does not find: private ones and ones in subfolders, read as data."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from command.files.trusted_paths import (
    conf_folder,
    find_option,
    is_trusted,
    option_names,
    real_path,
)
from command.files.yaml_file import ReceivedYaml, read_sections
from command.recipe.recipe_file import check_content
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

PART = re.compile(r"([a-z0-9_]+/[a-z0-9_]+)@_here_")
PACKAGES = {"preparation": "data.preparation"}  # of groups that are no sections


@dataclass(frozen=True)
class StoredConfig:
    """A config for Hydra's store. Its content is JSON text: equal configs compare equal."""

    group: str | None
    name: str
    text: str
    package: str


def read_options(choices: Mapping[str, str]) -> list[StoredConfig]:
    """Read the chosen options that Hydra does not find, and those that they start from."""
    return [config for group, name in choices.items() for config in _follow(group, name, ())]


def _follow(group: str, name: str, above: tuple[str, ...]) -> Iterator[StoredConfig]:
    file = find_option(group, name)
    if file.parent == conf_folder() / group:
        return  # Hydra finds this file
    if name in above:
        problem = f"{group} {name!r} starts from itself: {' -> '.join((*above, name))}"
        raise RecipeError(group, problem, f"correct the defaults of {file}")
    if not (file.is_relative_to(conf_folder()) or is_trusted(file)):
        problem = f"{file} links to {real_path(file)}, outside your trusted folders"
        raise RecipeError(group, problem, "replace the link with a copy")
    package = PACKAGES.get(group, group)
    sent = read_sections(file, group, package)
    try:
        parents = list(_check(sent, group, package))
    except RecipeError as error:
        path = error.path.removeprefix(f"{package}.")
        raise sent.locate_error(RecipeError(path, error.problem, error.remedy)) from None
    for parent in parents:
        yield from _follow(group, parent, (*above, name))
    yield StoredConfig(group, name, json.dumps(sent.tree), package)


def _check(sent: ReceivedYaml, group: str, package: str) -> Iterator[str]:
    """Check a file's content; yield the options of its group that it starts from."""
    own = {key: value for key, value in sent.tree.items() if key != "defaults"}
    check_content(own, package)
    entries = sent.tree.get("defaults", [])
    if not isinstance(entries, list):
        raise RecipeError("defaults", f"{entries!r} is not a list", "write - NAME")
    known = option_names(group)
    for entry in entries:
        if entry in known:
            yield entry
        elif entry != "_self_" and not _is_part(entry, group):
            problem = f"unknown {group}: {entry!r}"
            raise RecipeError("defaults", problem, suggest_similar(str(entry), known))


def _is_part(entry: object, group: str) -> bool:
    """Return whether this repository has such a part, as ``parts/dense@_here_``."""
    part = PART.fullmatch(entry) if isinstance(entry, str) else None
    return part is not None and (conf_folder() / group / f"{part[1]}.yaml").is_file()
