"""Commands that messages tell a user to run."""

import shlex
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "run.py"


def command_line(*words: str) -> str:
    """Write a command for a shell in the current folder, with ``run.py`` by its path."""
    here = Path(RUN.name)
    program = here if here.exists() and here.samefile(RUN) else RUN
    return shlex.join(["python", str(program), *words])
