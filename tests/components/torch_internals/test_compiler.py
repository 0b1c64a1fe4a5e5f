"""The private functions of torch's compiler that we use."""

import pytest
import torch

from components.torch_internals import operators
from components.torch_internals.operators import count_graphs

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns of its own imports


def test_each_graph_counts_once_and_one_too_many_is_an_error() -> None:
    operators.fail_at_recompile_limit()
    twice = torch.compile(lambda given: given * 2, backend="eager", dynamic=False)
    before = count_graphs()
    for length in range(2, 2 + operators.recompile_limit()):
        for _ in range(2):
            assert torch.equal(twice(torch.ones(length)), torch.full((length,), 2.0))
        assert count_graphs() - before == length - 1
    with pytest.raises(operators.RecompileLimitHit):
        twice(torch.ones(99))
    assert count_graphs() - before == operators.recompile_limit()
