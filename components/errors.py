"""Errors that a user can fix. Other exceptions are bugs or faults of the machine."""

import re

# Messages of out-of-memory errors, which have no exception type, or none that is loaded here.
# `SystemError` (a fault in C code) does not match, although CPython 3.11 raises it, too.
NO_MEMORY = re.compile(
    r"MemoryError|can(?:no|')t allocate memory|failed to map segment|bad_alloc|out of memory|"
    r"not enough memory|can't start new thread",
    re.IGNORECASE,
)


class RecipeError(ValueError):
    """Error in the user's input: the path, the value, the rule that it breaks, and a remedy.

    ``run.py`` prints the message without a traceback and exits with status 2.
    """

    def __init__(self, path: str, problem: str, remedy: str = "") -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}" + (f"\n  {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type["RecipeError"], tuple[str, str, str]]:
        """Pickle the error as its three parts, for transfer between processes."""
        return type(self), (self.path, self.problem, self.remedy)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
