"""The tree of the first recipe, composed once."""

from typing import Any

import pytest

from tests.components.config.helpers import teuken


@pytest.fixture(scope="session")
def full_tree() -> dict[str, Any]:
    return teuken("scale=full").model_dump(mode="json")
