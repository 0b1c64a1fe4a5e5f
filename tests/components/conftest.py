"""Processes to run on, started once for all tests of a worker."""

from collections.abc import Iterator

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
