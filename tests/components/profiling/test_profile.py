"""The table of a profiled step, against torch's own sums; ranges leave a model as it was."""

from collections import Counter

import pytest
from torch import nn

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.profiling import parts
from components.profiling.profile import profile_of
from components.profiling.timeline import own_times, times_of, total_of
from tests.components.profiling.conftest import DENSE, MIXTURE, MakeProfile

ALIKE = 1e-6  # relative: torch sums microseconds in floating point


@pytest.mark.parametrize("words", [DENSE, MIXTURE])
def test_the_parts_add_up_to_the_step(profiled: MakeProfile, words: tuple[str, ...]) -> None:
    trace = profiled(words).trace
    places = parts.places_of(trace)
    (step,) = [event for event in trace.main if event.is_step]
    assert sum(times_of(trace, places).values()) == total_of(trace, places)
    assert total_of(trace, places) == step.end - step.begin


def test_operator_times_equal_those_of_torch(profiled: MakeProfile) -> None:
    made = profiled(DENSE)
    found: Counter[str] = Counter()
    for event, begin, end in own_times(made.trace.main):
        found[event.name] += end - begin
    operators = {name for name in found if name.startswith("aten::")}
    assert len(operators) > 30
    for name in operators:
        assert found[name] / 1e3 == pytest.approx(made.own_times[name], rel=ALIKE, abs=0.1)


def test_a_backward_pass_has_the_part_of_its_forward_pass(profiled: MakeProfile) -> None:
    made = profiled(DENSE)
    times = times_of(made.trace, parts.places_of(made.trace))
    for part in (parts.ATTENTION, parts.PRODUCTS, parts.POINTWISE, parts.REST):
        assert times[part, "forward"] > 0
        assert times[part, "backward"] > 0, part
    assert times[parts.OPTIMIZER, ""] > 0


def test_experts_have_their_own_products_and_their_routing(profiled: MakeProfile) -> None:
    found = profile_of(profiled(MIXTURE).trace)
    assert list(found["parts"]) == list(parts.PARTS)
    for part in (parts.EXPERT_PRODUCTS, parts.ROUTING):
        assert found["parts"][part]["forward_seconds"] > 0
        assert found["parts"][part]["backward_seconds"] > 0


def test_recomputed_parts_have_their_own_times(profiled: MakeProfile) -> None:
    made = profiled(DENSE, recompute="full")
    places = parts.places_of(made.trace)
    times = times_of(made.trace, places)
    assert sum(times.values()) == total_of(made.trace, places)
    assert min(times[part, "recomputed"] for part in (parts.PRODUCTS, parts.ATTENTION)) > 0


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_removed_ranges_leave_the_model_unchanged() -> None:
    decoder = build_node(compose_recipe(read_point(list(DENSE))).model, "model")
    before = hooks(decoder)
    ranges = parts.Ranges([decoder])
    # A layer has itself, two norms, attention and its core, an MLP; around them are the
    # decoder, its last norm and its readouts.
    readouts = sum(name.endswith("readout") for name, _ in decoder.named_modules())
    assert hooks(decoder) == before + 2 * (2 * 6 + 2 + readouts)
    ranges.remove_hooks()
    assert hooks(decoder) == before
