"""A part of a step stands for all of it."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun import rank_roles, rehearsal
from components.dryrun.rank_roles import check_messages
from components.dryrun.rehearsal import StepTrace, run_two_steps
from components.errors import RecipeError
from components.versions import TORCH

WORDS = (
    *("recipe=teuken7b", "scale=parity", "model.num_layers=2", "cluster.ranks=2"),
    *("parallelism.pipeline=2", "parallelism.schedule=1f1b", "cluster.device=cpu"),
    *("parallelism.microbatch_sequences=1", "budget.sequence_length=64"),
    *("budget.global_batch_tokens=1024", "budget.total_tokens=10240"),
)
ALL = 16


@pytest.fixture(scope="module")
def some_and_all() -> tuple[StepTrace, StepTrace]:
    recipe = compose_recipe(read_point(list(WORDS)))
    try:
        check_messages(recipe)
    except RecipeError as refused:
        pytest.skip(str(refused))
    some = run_two_steps(recipe, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "microbatches_to_rehearse", lambda _: ALL)
        return some, run_two_steps(recipe, 1)


@pytest.mark.long
def test_few_microbatches_reach_the_peak_of_all(
    some_and_all: tuple[StepTrace, StepTrace],
) -> None:
    some, every = some_and_all
    assert (some.rehearsed, every.rehearsed) == (3, ALL)
    # All tokens of the step are there from its beginning, and numbers of each microbatch.
    tokens = 8 * (ALL - 3) * 65
    for phase, peak in every.peaks.items():
        assert peak.total_bytes == pytest.approx(
            some.peaks[phase].total_bytes + tokens, rel=0.005
        )


def test_their_counts_continue_to_those_of_all(
    some_and_all: tuple[StepTrace, StepTrace],
) -> None:
    some, every = some_and_all
    assert some.calls == every.calls
    assert some.bytes == every.bytes
    assert some.flops == every.flops
    assert {kind.operation for kind in every.calls} >= {"send", "receive", "all_reduce"}


def test_a_pipeline_is_refused_where_torch_cannot_rehearse_its_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = compose_recipe(read_point(list(WORDS)))
    monkeypatch.setattr(
        rank_roles, "read_installed_versions", lambda: {TORCH: "2.10.0a0+git449b176"}
    )
    with pytest.raises(RecipeError, match=r"parallelism\.pipeline: 2 stages.*2\.10\.0a0"):
        check_messages(recipe)
    monkeypatch.setattr(rank_roles, "read_installed_versions", lambda: {TORCH: "2.11.0+cu130"})
    check_messages(recipe)
