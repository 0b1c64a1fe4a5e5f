"""A torch without a schedule skips its tests."""

import pytest

from components.config.stages import SPLIT_SCHEDULES
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError


@pytest.fixture(autouse=True)
def _schedule_of_this_torch(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    apart = [one for one in SPLIT_SCHEDULES if one in name]
    if apart and "refused" not in name:
        try:
            check_schedule(apart[0])
        except RecipeError as refused:
            pytest.skip(str(refused))
