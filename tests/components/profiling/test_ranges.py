"""Ranges are on a model while it is profiled, and nothing of them stays."""

from torch import nn

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.profiling.parts import Ranges
from tests.components.profiling.conftest import DENSE


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_a_model_is_left_as_it_was() -> None:
    decoder = build_node(compose_recipe(read_point(list(DENSE))).model, "model")
    before = hooks(decoder)
    ranges = Ranges([decoder])
    # A layer has itself, two norms, attention and its core, an MLP; around them are the
    # decoder, its last norm and its readouts.
    readouts = sum(name.endswith("readout") for name, _ in decoder.named_modules())
    assert hooks(decoder) == before + 2 * (2 * 6 + 2 + readouts)
    ranges.remove_hooks()
    assert hooks(decoder) == before
