"""Child processes: environments that keep a child from running files of the working folder.

``python -m``, ``python -c`` and the helpers of :mod:`multiprocessing` put the working folder
first on ``sys.path``, unless ``PYTHONSAFEPATH`` is set. An empty or relative entry of a search
path means the working folder, too. ``run.py`` imports this module before any other, so it
imports only what Python itself has loaded at its start, and keeps to what Python 3.6 can read.
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
    """Return the environment of a program that is not ours: search paths have absolute entries.

    ``PYTHONSAFEPATH`` is not set: a tool that is a Python script may import files beside it.
    """
    found = {name: text for name, text in base.items() if name != SAFE_PATH}
    for name in SEARCH_PATHS:
        entries = [e for e in found.pop(name, "").split(os.pathsep) if e.startswith(os.sep)]
        if entries:
            found[name] = os.pathsep.join(entries)
    return found


def python_environment(base: "Mapping[str, str]" = os.environ) -> "dict[str, str]":
    """Return the environment of every Python process that this program starts.

    Modules come from this clone, then from the absolute entries of ``PYTHONPATH``, which a site
    may have set.
    """
    found = tool_environment(base)
    others = [e for e in found.get("PYTHONPATH", "").split(os.pathsep) if e not in {"", ROOT}]
    found["PYTHONPATH"] = os.pathsep.join([ROOT, *others])
    found[SAFE_PATH] = "1"
    return found


def leave_working_folder() -> None:
    """Take the working folder off the search paths of this process and of all its children.

    Python and the loader have read their search paths already: where one of them names the
    working folder, this process starts again without it.
    """
    clean = tool_environment()
    if any(os.environ.get(name) != clean.get(name) for name in SEARCH_PATHS):
        words = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # with the interpreter's options
        os.execve(sys.executable, [sys.executable, *words], python_environment())
    os.environ[SAFE_PATH] = "1"  # for the helpers of multiprocessing, and libraries' children
