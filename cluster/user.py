"""The user's side of a cluster: account, folders, environment. It never enters a recipe.

It is read from ``site.yaml`` in the user's configuration folder, a mapping by cluster name, and
from ``site.*`` on the command line, which wins.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from components.config.suggestions import nearest
from components.errors import RecipeError

# What the shell and both schedulers take as it stands, without quotes.
PLAIN = re.compile(r"[A-Za-z0-9_./@%+=:,-]+")
PATHS = ("runs", "venv", "image", "host_python")


@dataclass(frozen=True, kw_only=True)
class User:
    """What one user says of one cluster; ``None`` is unsaid."""

    account: str | None = None
    mail: str | None = None
    runs: str | None = None  # the folder for run folders
    venv: str | None = None  # where Python is, or `image`
    image: str | None = None
    host_python: str | None = None  # with an image: for what talks to the scheduler
    queue: str | None = None  # overrides the profile's choice
    reservation: str | None = None
    device_hours: float | None = None  # no run is submitted that is planned to take more
    python: str | None = None  # the version that a stage is for, as ``3.12``


def private_folder() -> Path:
    """Return ``kochbuch/`` in ``$XDG_CONFIG_HOME``, or else in ``~/.config``.

    A relative variable would mean the folder in which somebody works; its rule, that of
    freedesktop.org, is to leave it out. Without a home nothing is below what is returned.
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".config") / "kochbuch"
    except RuntimeError:  # nobody knows where the home is
        return Path(os.devnull) / "kochbuch"


def site_file() -> Path:
    """Return ``site.yaml`` of the private folder."""
    return private_folder() / "site.yaml"


def read_user(cluster: str, words: Mapping[str, Any]) -> User:
    """Read what the user says of ``cluster``; ``words`` are the ``site.*`` of the command line.

    Raises:
        RecipeError: the file is no mapping of mappings, a key is unknown, a value is not plain
            text, or both an image and a virtual environment are named.
    """
    user = User(**_check(_read_file().get(cluster) or {}, f"{site_file()}: {cluster}"))
    from_words = _check(words, "site")
    if from_words.keys() & {"image", "venv"}:  # a choice of one undoes the other of the file
        user = replace(user, image=None, venv=None)
    user = replace(user, **from_words)
    if user.image and user.venv:
        raise RecipeError(
            "site.image",
            f"both an image ({user.image}) and a virtual environment ({user.venv}) are named",
            "keep one of them: Python comes from the one or from the other",
        )
    return user


def unsaid(key: str, cluster: str, reason: str) -> RecipeError:
    """Return the error that the user has to name ``key``, with the file and the line."""
    return RecipeError(
        f"site.{key}",
        f"not set, and {reason}",
        f"write in {site_file()}:\n    {cluster}:\n      {key}: ...\n"
        f"  or add site.{key}=... to the command",
    )


def _read_file() -> Mapping[str, Any]:
    file = site_file()
    if not file.exists():
        return {}
    try:
        if not file.is_file():
            raise ValueError("no regular file")  # a pipe or a device might never end
        tree = yaml.safe_load(file.read_text("utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problem = f"cannot be read: {' '.join(str(error).split())}"
        raise RecipeError(str(file), problem, "it is a YAML mapping") from None
    if not isinstance(tree, dict):
        raise RecipeError(str(file), f"{tree!r} is no mapping", "begin with a cluster's name:")
    return tree


def _check(section: Any, where: str) -> dict[str, Any]:
    keys = [field.name for field in fields(User)]
    if not isinstance(section, Mapping):
        raise RecipeError(where, f"{section!r} is no mapping", f"its keys: {', '.join(keys)}")
    for key in section:
        if key not in keys:
            raise RecipeError(f"{where}.{key}", "unknown key", nearest(str(key), keys))
    return {key: _value(key, value, f"{where}.{key}") for key, value in section.items()}


def _value(key: str, value: object, where: str) -> str | float:
    """Fill in the shell's variables of a path; what is left goes into a script as it stands."""
    if key == "device_hours":
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            problem = f"{value!r} is no number of hours"
            raise RecipeError(where, problem, "write device_hours: 10_000")
        return float(value)
    if not isinstance(value, str):
        raise RecipeError(where, f"{value!r} is no text", "quote it")
    text = value
    if key in PATHS:
        text = os.path.expandvars(os.path.expanduser(value))  # noqa: PTH111 (~unknown stays)
    if not PLAIN.fullmatch(text):
        remedy = "a job script takes letters, digits and _ . / @ % + = : , -"
        raise RecipeError(where, f"{text!r} cannot stand in a job script", remedy)
    if key in PATHS and not Path(text).is_absolute():
        raise RecipeError(where, f"{text!r} is no absolute path", "begin it with / or $SCRATCH")
    return text
