"""How a script of this folder starts: its help, and what wrong words are told."""

import inspect
import sys
from collections.abc import Callable
from typing import NoReturn

from components.errors import RecipeError

WRONG_INPUT = 2


def enter(
    main: Callable[[list[str]], int | None], *, least: int = 0, most: int | None = None
) -> NoReturn:
    """Run ``main`` on the command's words and exit with its status.

    ``--help`` prints the script's docstring; so do, with status 2, fewer or more words than it
    takes.
    """
    words = sys.argv[1:]
    told = inspect.getdoc(sys.modules["__main__"])
    if {"-h", "--help"} & {*words}:
        print(told)
        sys.exit(0)
    if len(words) < least or (most is not None and len(words) > most):
        sys.stderr.write(f"{len(words)} words are not what it takes\n\n{told}\n")
        sys.exit(WRONG_INPUT)
    try:
        sys.exit(main(words))
    except RecipeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(WRONG_INPUT)
