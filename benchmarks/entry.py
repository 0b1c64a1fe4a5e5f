"""Entry point of the benchmark scripts: help, number of arguments, exit status."""

import inspect
import sys
from collections.abc import Callable
from typing import NoReturn

from components.errors import RecipeError

WRONG_INPUT = 2


def run_script(
    main: Callable[[list[str]], int | None], *, min_words: int = 0, max_words: int | None = None
) -> NoReturn:
    """Run ``main`` on the arguments of the command and exit with its status.

    ``--help`` prints the script's docstring. A wrong number of arguments prints it on standard
    error, with status 2.
    """
    words = sys.argv[1:]
    usage = inspect.getdoc(sys.modules["__main__"])
    if {"-h", "--help"} & {*words}:
        print(usage)
        sys.exit(0)
    if len(words) < min_words or (max_words is not None and len(words) > max_words):
        sys.stderr.write(f"wrong number of arguments: {len(words)}\n\n{usage}\n")
        sys.exit(WRONG_INPUT)
    try:
        sys.exit(main(words))
    except RecipeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(WRONG_INPUT)
