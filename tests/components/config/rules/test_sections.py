"""Guards, watchdog, profiler: what could do nothing is refused, with a way out."""

import pytest

from components.config.fingerprint import compute_fingerprint
from components.config.layout import reserve_of
from components.config.resolve import update_recipe
from components.errors import RecipeError
from tests.components.config.helpers import assert_refused, refusals, teuken
from tests.components.config.rules.test_engine import DEEPSPEED
from tests.recipes.compositions import compose


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
guard.inject=[{fault: nan, rank: 1, step: 1}] cluster.ranks=1
    guard\.inject\.0\.rank: 1 is more than the last rank 0 -> write guard
guard.inject=[{fault: nan, rank: 0, step: 1_000_000_000}]
    guard\.inject\.0\.step: 1,000,000,000 is more than the last step
guard.inject=[{fault: gremlin, rank: 0, step: 1}]
    guard\.inject\.0: .*'gremlin' .*'nan', 'spike'
guard.inject=[{fault: nan, rank: 0}] -> guard\.inject\.0.*step: missing
guard.inject=[{fault: bit_flip, rank: 0, step: 1, bit: 32}]
    guard\.inject\.0.*bit: .* 31, got 32
data.skip=[[16, 0]] -> data\.skip\.0\.1: .* greater than 0, got 0
watchdog.step_seconds=10.0 watchdog.pause_seconds=5.0
    watchdog\.pause_seconds: 5\.0 is less than watchdog\.step_seconds 10\.0
    write watchdog\.pause_seconds=10\.0 or more
watchdog.restarts=1 -> watchdog\.restarts: 1, but a single local rank has no agent
cluster.ranks=2 watchdog.restarts=1 cluster.spare_nodes=1
    cluster\.spare_nodes: 1, but spare nodes need a scheduler
cluster=juwels cluster.spare_nodes=2 cluster.preflight=none watchdog.restarts=0
    cluster\.spare_nodes: 2, but a run without preflight and.*
    set watchdog\.restarts=3 or cluster\.preflight
watchdog.slow_ratio=1.0 -> watchdog\.slow_ratio: input should be greater than 1
profiler.steps=3 profiler.first_step=149
    profiler\.first_step: 149 is more than the last valid first step for profiler\.steps, 148
    write profiler\.first_step=148 or less
profiler.steps=151 profiler.first_step=1
    profiler\.steps: 151 is more than the number of steps of the run, 150
    write profiler\.steps=150 or less
profiler.steps=1 profiler.ranks=[0,2] cluster.ranks=2
    profiler\.ranks: 2 is more than the last rank 1
profiler.ranks=[] -> profiler\.ranks: tuple should have at least 1 item
"""),
)
def test_settings_without_effect_are_refused(words: str, message: str) -> None:
    assert_refused(words, message)


def test_nan_is_the_name_of_a_fault() -> None:
    (fault,) = teuken("guard.inject=[{fault: nan, rank: 0, step: 1}]").guard.inject
    assert (fault.fault, fault.rank, fault.step) == ("nan", 0, 1)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_has_no_norm_before_the_update(zero: int) -> None:
    words = (*DEEPSPEED, "guard=spikes", f"parallelism.zero={zero}")
    said = rf"guard\.gradient_norm_spike: DeepSpeed at zero={zero} computes the norm only "
    said += r"after the update\n  set guard\.gradient_norm_spike=none, "
    with pytest.raises(RecipeError, match=said):
        teuken(*words)
    assert teuken(*words, "guard.gradient_norm_spike=none").guard.loss_spike != "none"
    assert teuken(*words[:-1], "parallelism.zero=0").guard.gradient_norm_spike != "none"


def test_skipped_windows_change_the_fingerprint() -> None:
    recipe, skipping = teuken(), teuken("data.skip=[[16, 8], [64, 8]]")
    assert skipping.data.skip == ((16, 8), (64, 8))
    assert compute_fingerprint(recipe) != compute_fingerprint(skipping)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bloom176b cluster=jean_zay", (48, 4, 4)),  # 32 GPUs, as BLOOM's reserve
        ("bloom176b cluster=jean_zay parallelism.data=4", (24, 2, 2)),
        ("bloom176b cluster=jean_zay cluster.spare_nodes=1", (48, 1, 1)),
        ("bloom176b cluster=jean_zay watchdog.restarts=9", (48, 4, 9)),
        ("mula220b_a10b cluster=aurora", (256, 5, 5)),
        (
            "mula1b cluster=aurora scale=mini cluster.nodes=2 budget.global_batch_tokens=6_144",
            (2, 0, 0),
        ),
        ("bloom176b", (1, 0, 0)),
    ],
)
def test_a_profile_keeps_its_fraction_of_a_job_s_nodes_and_a_launch_for_each(words, expected):
    recipe = compose(*words.split())
    cluster = recipe.cluster
    assert (cluster.nodes, cluster.spare_nodes, recipe.watchdog.restarts) == expected


def test_spare_nodes_stay_within_the_limit_of_the_queue() -> None:
    job = {"nodes": 50, "spare_fraction": 0.0834, "queues": [{"most_nodes": 52}]}
    assert reserve_of(job) == 2
    assert reserve_of(job | {"queues": []}) == 4
    assert reserve_of(job | {"nodes": 53}) == 0


def test_a_moved_run_keeps_user_keys_and_derives_the_others() -> None:
    large = compose("mula220b_a10b", "cluster=aurora")
    half = update_recipe(large, {"parallelism.data": 16})
    assert (half.cluster.nodes, half.cluster.spare_nodes) == (128, 2)
    assert half.watchdog.restarts == 2
    restarts = large.watchdog.model_copy(update={"restarts": 3})
    named = large.model_copy(update={"watchdog": restarts})
    assert update_recipe(named, {"parallelism.data": 16}).watchdog.restarts == 3


def test_the_last_step_can_be_profiled_without_effect_on_weights() -> None:
    profiled = teuken("profiler.steps=3", "profiler.first_step=148")
    assert compute_fingerprint(profiled) == compute_fingerprint(teuken())
