"""Selective recomputation repeats no product, attention or collective, and changes no bit."""

import pytest

from components.config.model_spec.positions import AlibiSpec
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.recompute_cases import recompute_beside_none
from tests.components.distributed.tensor_cases import RMS_NORM, Parts
from tests.components.distributed.test_experts import mixture
from tests.components.distributed.test_tensor import GATED, HEAD_NORMS, NORMS_AFTER, SINKS
from tests.components.distributed.test_tensor_layouts import BLOOM

DROPS = BLOOM._replace(dropout=0.1, attention_dropout=0.2)


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        ("whole", Parts(qk_norm=RMS_NORM)),
        ("sliced", Parts()),
        ("whole", NORMS_AFTER),
        ("sliced", NORMS_AFTER._replace(bias=True, dropout=0.1)),
        ("whole", HEAD_NORMS),
        ("sliced", GATED),
        ("whole", SINKS),
        ("whole", DROPS),
        ("sliced", DROPS),
        ("context", Parts()),
        ("context", Parts(positions=AlibiSpec())),
        ("all_gather 1", mixture()),
        ("all_gather 2", mixture()._replace(dropout=0.1)),
        ("all_to_all 1", mixture()),
        ("all_to_all 2", mixture()._replace(dropout=0.1)),
    ],
    ids=[
        *(
            "whole",
            "sliced",
            "norms after",
            "sliced, norms after",
            "norm of each head",
            "gated",
            "sinks",
        ),
        *("whole, drops", "sliced, drops", "context", "context, slopes"),
        *("gathered", "gathered in parts", "exchanged", "exchanged in parts"),
    ],
)
def test_what_waits_for_other_ranks_is_kept_and_no_gradient_changes(
    two_ranks: Ranks, layout: str, parts: Parts
) -> None:
    for difference, called, again in two_ranks(recompute_beside_none, parts, layout):
        assert difference == 0
        assert again == called
