"""Run ``flex_attention`` on a CPU, with its backward pass, in double precision."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention

from components.model import attention


@contextmanager
def flex_on_cpu() -> Iterator[None]:
    """Select flex for any order, without compilation, about which torch warns.

    Torch refuses the backward pass on a CPU because of its compiled kernel. It also caches the
    graph of each set of functions, so the cache is cleared.
    """
    torch._dynamo.reset()
    with (
        patch.object(attention, "select_backends", lambda order, case: ("flex",)),
        patch.object(flex_attention, "_validate_device", lambda *heads: None),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        warnings.filterwarnings(
            "ignore", message="The .grad attribute of a Tensor"
        )  # of its graph
        yield
