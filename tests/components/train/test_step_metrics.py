"""The ranks' figures of a step, beside sums of whole numbers in Python."""

import math

import pytest

from components.data.samples import DIGEST_MODULUS
from tests.components.distributed.ranks import Ranks
from tests.components.train.agreement_cases import agreed

# Their sum has more digits than a float64, and wraps around.
DIGESTS = [DIGEST_MODULUS - 1, 0, (1 << 62) + 12_345_678_901_234_567, (1 << 53) + 1]
SUMMED = 0 + 1 + 2 + 3  # of the numbers of the ranks


@pytest.mark.parametrize("asks", [None, 2])
def test_every_rank_has_the_same_sums_to_the_last_bit(four_ranks, asks: int | None) -> None:
    for found in four_ranks(agreed, DIGESTS, asks, True):
        assert found == {
            "loss": SUMMED,
            "auxiliary_loss": 2 * SUMMED,
            "expert_load": 3 * SUMMED,
            "overflow_pairs": 5 * SUMMED,
            "mtp_loss": 7 * SUMMED,
            "stop": asks is not None,
            "gradient_norm": math.sqrt(4 * SUMMED),
            "samples_digest": sum(DIGESTS) % DIGEST_MODULUS,
            "norm": math.sqrt(4 * SUMMED),
            "own_sums": [SUMMED, 4 * 10.0],
        }


def test_a_norm_that_only_the_engine_knows_is_none(four_ranks: Ranks) -> None:
    for found in four_ranks(agreed, DIGESTS, None, False):
        assert (found["gradient_norm"], found["norm"]) == (None, 0.0)
        assert found["samples_digest"] == sum(DIGESTS) % DIGEST_MODULUS
