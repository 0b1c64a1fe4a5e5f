"""torch.compile of a function; reaching its limit of graphs is an error with a fix."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from components.errors import RecipeError
from components.torch_internals import operators

Given = ParamSpec("Given")
Result = TypeVar("Result")


def compile_for(
    key: str, function: Callable[Given, Result], *, dynamic: bool, remedy: str
) -> Callable[Given, Result]:
    """Wrap ``function`` in `torch.compile`, as the recipe's ``key`` requires.

    Unless ``dynamic``, each set of shapes has its own graph. Dropout is as without the
    compiler. A call beyond torch's limit of graphs raises RecipeError with ``remedy``.
    """
    operators.fail_at_recompile_limit()
    compiled = torch.compile(function, dynamic=dynamic, options={"fallback_random": True})

    @wraps(function)
    def call_compiled(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return compiled(*given, **named)
        except operators.RecompileLimitHit as error:
            limit = operators.recompile_limit()
            problem = f"torch's compiler has made {limit} graphs of one function"
            raise RecipeError(key, f"{problem}, its limit, and needs more", remedy) from error

    return call_compiled
