"""What norms keep for the backward pass."""

import pytest

from components.config.schema.sections import RecomputedPart
from components.planner.activations import layer_bytes_per_token
from tests.components.planner.jobs import gpt, job, layout

MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)


def test_a_norm_after_the_mlp_keeps_what_it_gave() -> None:
    after = MIDDLE.model_copy(update={"norm_placement": "after"})
    where = layout(sequence_parallel=False)
    one, other = (
        layer_bytes_per_token(job(shape, where), "selective") for shape in (MIDDLE, after)
    )
    assert other - one == 2 * 4_096


@pytest.mark.parametrize(
    ("placement", "again", "fewer"),
    [
        ("before", ("mlp", "norms"), 1),
        ("both", ("attention", "mlp", "norms"), 2),
        ("after", ("attention", "mlp", "norms"), 0),
    ],
)
def test_a_recomputed_part_does_not_keep_the_output_of_the_norm_before_it(
    placement: str, again: tuple[RecomputedPart, ...], fewer: int
) -> None:
    shape = MIDDLE.model_copy(update={"norm_placement": placement})
    parts = job(shape, layout(sequence_parallel=False))
    without = tuple(part for part in again if part != "norms")
    less = layer_bytes_per_token(parts, without) - layer_bytes_per_token(parts, again)
    assert less == fewer * 2 * 4_096


def test_norms_on_both_sides_keep_what_both_branches_gave() -> None:
    both = MIDDLE.model_copy(update={"norm_placement": "both"})
    where = layout(sequence_parallel=False)
    for again in ("none", ("norms",)):  # a recomputed norm keeps its input, too
        kept = [layer_bytes_per_token(job(shape, where), again) for shape in (MIDDLE, both)]
        assert kept[1] - kept[0] == 2 * 2 * 4_096
    assert both.total_parameters - MIDDLE.total_parameters == 2 * both.num_layers * 4_096 * (
        both.norm.weight + both.norm.bias
    )
