"""Which kernels the layers of a recipe take, known where it is composed."""

import pytest

from components.config.rules.attention import attention_backends, attention_passes
from components.planner.job import job_from_recipe
from tests.components.config.helpers import teuken

GPU = "cluster.device=cuda"
PATTERN = "model.attention.windows=[8, 8, 8, full]"


def test_layers_with_a_window_use_flex_attention() -> None:
    plain, windowed = teuken(GPU), teuken(GPU, PATTERN)
    first, flex = attention_backends(plain)[False], ("flex",)
    assert first[0] == "cudnn"
    assert attention_backends(windowed) == {False: first, True: flex}
    assert attention_backends(teuken(GPU, "model.attention.windows=[8]")) == {True: flex}
    longer = "model.attention.windows=[full, 1_000_000]"
    assert attention_backends(teuken(GPU, longer)) == {False: first}
    assert attention_backends(teuken(PATTERN, "cluster.device=cpu")) == {False: (), True: ()}


def test_flex_with_dropout_computes_scores_twice() -> None:
    drops = "model.attention.dropout=0.1"
    assert attention_passes(teuken(GPU, PATTERN)) == 1
    assert attention_passes(teuken(GPU, drops)) == 1
    assert attention_passes(teuken(GPU, PATTERN, drops)) == 1.75
    assert attention_passes(teuken(GPU, "model.attention.windows=[8]", drops)) == 2


@pytest.mark.parametrize(("order", "fused"), [("[math,flex]", False), ("[flash,flex]", True)])
def test_a_kernel_with_a_score_matrix_counts_for_all_layers(order, fused):
    words = (GPU, PATTERN, f"model.attention.backends={order}", "cluster=juwels")
    assert job_from_recipe(teuken(*words)).fused_attention == fused
