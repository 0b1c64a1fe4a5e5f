"""Let a CPU take ``flex_attention``, backward too, in double precision: torch's own formula."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.attention import flex_attention

from components.model import attention


@contextmanager
def flex_on_cpu() -> Iterator[None]:
    """Choose flex whatever the order; uncompiled, which torch warns of and means for tests.

    Torch refuses the backward pass on a CPU for the sake of its compiled kernel, and keeps the
    graph that it makes of the formula for every set of functions: it is forgotten.
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
        )  # its graph's
        yield
