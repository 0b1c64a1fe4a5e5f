"""User settings of a cluster: account, folders, environment. A recipe never contains them.

They are read from ``site.yaml`` in the user's configuration folder, a mapping by cluster name,
and from ``site.*`` on the command line. The command line takes precedence.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from components.config.suggestions import suggest_similar
from components.errors import RecipeError

# Strings that the shell and both schedulers accept without quotes.
PLAIN = re.compile(r"[A-Za-z0-9_./@%+=:,-]+")
PATHS = ("runs", "venv", "image", "host_python")


@dataclass(frozen=True, kw_only=True)
class User:
    """A user's settings for one cluster; ``None`` means not set."""

    account: str | None = None
    mail: str | None = None
    runs: str | None = None  # the folder for run folders
    venv: str | None = None  # virtual environment of Python, or use `image`
    image: str | None = None
    host_python: str | None = None  # with an image: Python that calls the scheduler
    queue: str | None = None  # overrides the profile's choice
    reservation: str | None = None
    device_hours: float | None = None  # runs planned to take more are not submitted
    python: str | None = None  # version to stage for, such as ``3.12``


def private_folder() -> Path:
    """Return ``kochbuch/`` in ``$XDG_CONFIG_HOME``, or in ``~/.config``.

    A relative ``$XDG_CONFIG_HOME`` is ignored, as the freedesktop.org specification requires.
    Without a home directory, the returned folder cannot exist.
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".config") / "kochbuch"
    except RuntimeError:  # the user has no home directory
        return Path(os.devnull) / "kochbuch"


def site_file() -> Path:
    """Return ``site.yaml`` of the private folder."""
    return private_folder() / "site.yaml"


def read_user(cluster: str, words: Mapping[str, Any]) -> User:
    """Read the user's settings for ``cluster``; ``words`` are ``site.*`` of the command."""
    user = User(**_check(_read_file().get(cluster) or {}, f"{site_file()}: {cluster}"))
    from_words = _check(words, "site")
    if from_words.keys() & {"image", "venv"}:  # overrides both keys of the file
        user = replace(user, image=None, venv=None)
    user = replace(user, **from_words)
    if user.image and user.venv:
        raise RecipeError(
            "site.image",
            f"an image ({user.image}) and a virtual environment ({user.venv}) are both set",
            "keep only one: Python comes from the image or from the environment",
        )
    return user


def missing_setting_error(key: str, cluster: str, reason: str) -> RecipeError:
    """Return the error that the user has to set ``key``, with the file and the line."""
    return RecipeError(
        f"site.{key}",
        f"not set, and {reason}",
        f"add to {site_file()}:\n    {cluster}:\n      {key}: ...\n"
        f"  or add site.{key}=... to the command",
    )


def _read_file() -> Mapping[str, Any]:
    file = site_file()
    if not file.exists():
        return {}
    try:
        if not file.is_file():
            raise ValueError("not a regular file")  # a pipe or a device might never end
        tree = yaml.safe_load(file.read_text("utf-8")) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problem = f"cannot be read: {' '.join(str(error).split())}"
        raise RecipeError(str(file), problem, "write a YAML mapping") from None
    if not isinstance(tree, dict):
        raise RecipeError(str(file), f"{tree!r} is not a mapping", "start with CLUSTER:")
    return tree


def _check(section: Any, where: str) -> dict[str, Any]:
    keys = [field.name for field in fields(User)]
    if not isinstance(section, Mapping):
        raise RecipeError(where, f"{section!r} is not a mapping", f"keys: {', '.join(keys)}")
    for key in section:
        if key not in keys:
            raise RecipeError(f"{where}.{key}", "unknown key", suggest_similar(str(key), keys))
    return {key: _value(key, value, f"{where}.{key}") for key, value in section.items()}


def _value(key: str, value: object, where: str) -> str | float:
    """Check a value and expand shell variables in paths. Other text stays unchanged."""
    if key == "device_hours":
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            problem = f"expected a number of hours above 0, got {value!r}"
            raise RecipeError(where, problem, "write device_hours: 10_000")
        return float(value)
    if not isinstance(value, str):
        raise RecipeError(where, f"expected a string, got {value!r}", "quote the value")
    text = value
    if key in PATHS:
        text = os.path.expandvars(os.path.expanduser(value))  # noqa: PTH111 (~unknown stays)
    if not PLAIN.fullmatch(text):
        remedy = "use only letters, digits and _ . / @ % + = : , -"
        raise RecipeError(where, f"{text!r} is not allowed in a job script", remedy)
    if key in PATHS and not Path(text).is_absolute():
        raise RecipeError(where, f"{text!r} is not an absolute path", "use / or $SCRATCH")
    return text
