"""Skip tests of schedules that this release of torch does not support."""

import pytest

from components.config.stages import SPLIT_SCHEDULES
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError


@pytest.fixture(autouse=True)
def _schedule_of_this_torch(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    schedules = [schedule for schedule in SPLIT_SCHEDULES if schedule in name]
    if schedules and "refused" not in name:
        try:
            check_schedule(schedules[0])
        except RecipeError as error:
            pytest.skip(str(error))
