"""What one rank cannot do, no rank goes on from."""

from collections.abc import Iterator

import pytest

from tests.components.checkpoint import digest_cases as cases
from tests.components.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


def test_every_rank_gets_what_all_ranks_got_in_their_order(three: Ranks) -> None:
    assert three(cases.agree, ()) == [[0, 10, 20]] * 3


@pytest.mark.parametrize("failing", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_all_ranks_raise_the_error_of_the_first_that_has_one(
    three: Ranks, failing: tuple[int, ...]
) -> None:
    said = three(cases.refused, cases.agree, failing)
    assert said == [f"rank.{failing[0]}: fails\n  mend it"] * 3
