"""Shell commands in messages to the user."""

import shlex
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "run.py"


def command_line(*words: str) -> str:
    """Return a shell command that runs ``run.py`` from the current folder."""
    here = Path(RUN.name)
    program = here if here.exists() and here.samefile(RUN) else RUN
    return shlex.join(["python", str(program), *words])
