"""Processes to run on, started once."""

from collections.abc import Iterator

import pytest

from components.distributed.pipeline import check_schedule
from components.errors import RecipeError
from tests.components.distributed.ranks import Ranks


@pytest.fixture(autouse=True)
def _schedule_of_this_torch(request: pytest.FixtureRequest) -> None:
    if "zero_bubble" in request.node.name and "refused" not in request.node.name:
        try:
            check_schedule("zero_bubble")
        except RecipeError as refused:
            pytest.skip(str(refused))


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks
