"""Compose every attack while an audit hook records files, imports and programs.

``python -m tests.attack.composed``, in its own folder, prints the record as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.errors import RecipeError

HERE = Path(__file__).resolve().parent
ATTACKS = HERE / "recipes"
# Acts: code that runs, another program, the network, changes of files.
ACTS = (
    *("exec", "import", "subprocess", "os.", "socket", "shutil", "ctypes", "pty", "webbrowser"),
)
LOOKS = frozenset({"os.listdir", "os.scandir"})


def attack(file: Path) -> str:
    """Return the refusal."""
    try:
        compose_recipe(read_point([f"recipe={file}"]))
    except RecipeError as error:
        return str(error)
    return ""


def main() -> None:
    events: list[tuple[str, str, str]] = []
    listening: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not listening:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            events.append((listening[0], "write" if writes else "read", str(path)))
        elif event.startswith(ACTS) and event not in LOOKS:
            events.append((listening[0], event, repr(arguments)[:200]))

    names = [one["name"] for one in json.loads((ATTACKS / "index.json").read_text("utf-8"))]
    for name in ("climbing_text", "key_twice", "resolver_that_survives", "date_that_is_none"):
        attack(ATTACKS / f"{name}.yaml")  # what Hydra, pydantic and we import late
    sys.addaudithook(hook)
    refusals = {}
    for name in names:
        listening[:] = [name]
        refusals[name] = attack(ATTACKS / f"{name}.yaml")
        listening.clear()
    sys.stdout.write(json.dumps({"refusals": refusals, "events": events}))


if __name__ == "__main__":
    main()
