"""A torch without a schedule skips its tests."""

import pytest

from components.distributed.pipeline import check_schedule
from components.errors import RecipeError


@pytest.fixture(autouse=True)
def _schedule_of_this_torch(request: pytest.FixtureRequest) -> None:
    if "zero_bubble" in request.node.name and "refused" not in request.node.name:
        try:
            check_schedule("zero_bubble")
        except RecipeError as refused:
            pytest.skip(str(refused))
