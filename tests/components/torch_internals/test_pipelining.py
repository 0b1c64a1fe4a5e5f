from tests.components.distributed.ranks import Ranks
from tests.components.torch_internals.pipelining_cases import MICROBATCHES, memory_over_a_step


def test_memory_to_receive_lives_from_a_message_to_the_end_of_its_backward_pass(
    two_ranks: Ranks,
) -> None:
    first, last = two_ranks(memory_over_a_step)
    for steps in (first, last):
        assert [number for number, *_ in steps] == list(range(MICROBATCHES))
        for number, before, after in steps:
            assert all(len(numbers) <= 2 for numbers in before)
            assert all(number not in numbers for numbers in after)
        assert steps[-1][2] == (set(), set())
