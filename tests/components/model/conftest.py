"""What tests of the model share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
