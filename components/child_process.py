"""Environments of child processes that prevent running files from the working folder.

``python -m``, ``python -c`` and the helpers of :mod:`multiprocessing` put the working folder
first on ``sys.path``, unless ``PYTHONSAFEPATH`` is set. An empty or relative entry of a search
path also means the working folder. ``run.py`` imports this module first, so it imports only
what Python loads at startup, and uses only Python 3.6 syntax.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = __file__.rsplit(os.sep, 2)[0]
SAFE_PATH = "PYTHONSAFEPATH"
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def tool_environment(base: "Mapping[str, str]" = os.environ) -> "dict[str, str]":
    """Return the environment for an external program: search paths have absolute entries only.

    ``PYTHONSAFEPATH`` is not set: a tool in Python may import files from its own folder.
    """
    environment = {name: text for name, text in base.items() if name != SAFE_PATH}
    for name in SEARCH_PATHS:
        entries = [
            e for e in environment.pop(name, "").split(os.pathsep) if e.startswith(os.sep)
        ]
        if entries:
            environment[name] = os.pathsep.join(entries)
    return environment


def python_environment(base: "Mapping[str, str]" = os.environ) -> "dict[str, str]":
    """Return the environment for every Python process that this program starts.

    Modules come from this clone, then from absolute entries of a site's ``PYTHONPATH``.
    """
    environment = tool_environment(base)
    entries = [
        e for e in environment.get("PYTHONPATH", "").split(os.pathsep) if e not in {"", ROOT}
    ]
    environment["PYTHONPATH"] = os.pathsep.join([ROOT, *entries])
    environment[SAFE_PATH] = "1"
    return environment


def leave_working_folder() -> None:
    """Remove the working folder from the search paths of this process and all its children.

    Python and the dynamic loader have already read their search paths. If a search path
    contains the working folder, this process re-executes itself without it.
    """
    clean = tool_environment()
    if any(os.environ.get(name) != clean.get(name) for name in SEARCH_PATHS):
        argv = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # with the interpreter's options
        os.execve(sys.executable, [sys.executable, *argv], python_environment())
    os.environ[SAFE_PATH] = "1"  # for multiprocessing helpers and children that libraries start
