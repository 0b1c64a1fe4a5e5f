"""Graphs of torch's compiler: made for few shapes, and never left out in silence.

Left to itself torch runs a function without its compiler for good once it was compiled for
eight sets of shapes, and only warns of it. Here that is an error.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from components.errors import RecipeError
from components.torch_internals.compiler import (
    RecompileLimitHit,
    fail_at_recompile_limit,
    recompile_limit,
)

Given = ParamSpec("Given")
Result = TypeVar("Result")


def compile_for(
    key: str, function: Callable[Given, Result], *, dynamic: bool, remedy: str
) -> Callable[Given, Result]:
    """Wrap ``function`` in `torch.compile`, as the recipe's ``key`` asks.

    Unless ``dynamic``, each set of shapes is a graph of its own. Dropout draws what it would
    without a compiler.

    Raises:
        RecipeError: when called, it would need more graphs than torch makes of one function;
            ``remedy`` is the way out.
    """
    fail_at_recompile_limit()
    compiled = torch.compile(function, dynamic=dynamic, options={"fallback_random": True})

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return compiled(*given, **named)
        except RecompileLimitHit as error:
            made = f"torch's compiler has made {recompile_limit()} graphs of one function"
            raise RecipeError(key, f"{made}, its limit, and needs more", remedy) from error

    return call
