"""Processes to run on, started once for all tests of a worker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.components.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture
def run_layout(two_ranks: Ranks, four_ranks: Ranks) -> Callable[..., list[Any]]:
    """Run a case of a model's parts and a layout on as many ranks as the layout has."""

    def run(case: Callable[..., Any], parts: Any, layout: Any, *more: Any) -> list[Any]:
        ranks = {2: two_ranks, 4: four_ranks}[layout.ranks]
        return ranks(case, parts, layout, *more)

    return run
