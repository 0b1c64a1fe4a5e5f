"""The one family of errors that a user can mend.

Everything else that is raised is a bug of ours or of the machine, and propagates.
"""

import re

# Libraries have no exception type for it, or the type is not loaded here. CPython 3.11 reports
# the last message if it cannot allocate a frame (`_PyThreadState_PushFrame`).
NO_MEMORY = re.compile(
    r"MemoryError|can(?:no|')t allocate memory|failed to map segment|bad_alloc|out of memory|"
    r"not enough memory|can't start new thread|error return without exception set",
    re.IGNORECASE,
)


class RecipeError(ValueError):
    """Describe what is wrong with the input: where, what value, which rule, the way out.

    ``run.py`` prints the message, without a traceback, and exits with status 2.
    """

    def __init__(self, path: str, problem: str, remedy: str = "") -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}" + (f"\n  {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type["RecipeError"], tuple[str, str, str]]:
        """Cross from one process to another as its three parts."""
        return type(self), (self.path, self.problem, self.remedy)
