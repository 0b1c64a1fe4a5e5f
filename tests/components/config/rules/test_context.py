"""Lengths that context ranks cannot cut, and what they cannot compute, are refused at once."""

import pytest

from components.config.layout import deal_ranks
from components.config.rules.layout import sequence_divisor
from components.config.user_overrides import UserOverrides
from tests.components.config.helpers import teuken


@pytest.mark.parametrize(
    ("context", "slices", "divisor"), [(1, 1, 1), (1, 3, 3), (2, 1, 4), (2, 2, 4), (3, 4, 12)]
)
def test_a_context_part_has_two_chunks_of_whole_slices(
    context: int, slices: int, divisor: int
) -> None:
    assert sequence_divisor(context=context, slices=slices) == divisor
    part = divisor / context
    assert part % slices == 0
    assert context == 1 or part % 2 == 0


@pytest.mark.parametrize(("length", "context"), [(16, 8), (12, 2), (6, 1)])
def test_a_miniature_uses_context_ranks_only_if_the_sequence_divides(length, context):
    tree = teuken().model_dump(mode="json")
    tree["parallelism"] |= {"tensor": 2, "pipeline": 1, "context": 8}
    tree["budget"]["sequence_length"] = length
    tree["cluster"]["ranks"] = 128
    deal_ranks(tree, 4, UserOverrides([]))
    dealt = tree["parallelism"]
    assert (dealt["tensor"], dealt["context"]) == (2, context)
    assert dealt["data"] * dealt["tensor"] * dealt["context"] == 128
