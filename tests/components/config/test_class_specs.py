"""Callbacks and loggers of a recipe: their keys are read from the source of their classes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.config import class_specs
from components.config.check import check_recipe
from components.config.class_specs import CallbackSpec, read_class_specs
from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, split_by_group
from components.config.recipe import Recipe
from components.config.resolve import update_recipe
from components.config.schema.monitoring import CURVES
from components.config.schema.types import to_plain
from components.errors import RecipeError
from tests.components.config.helpers import teuken

OWN = """
import torch_that_is_not_there

class Noise(Callback):
    def __init__(self, scale: float, seeds: list[int], name: str | None = None) -> None: ...

@dataclass
class Clock(pytorch.Callback):
    keys_group: ClassVar = KeyGroup.MACHINE
    every_steps: int
    loud: bool = False
    folder: RunFolder
    _count: int = field(default=0, init=False)

class Needs(Callback):
    def __init__(self, event_log: EventLog) -> None: ...

class NoCallback:
    pass
"""
MODULE = "components.train.callbacks.own"
NOISE = {"_target_": f"{MODULE}.Noise", "scale": 0.5, "seeds": [1, 2]}
CLOCK = {"_target_": f"{MODULE}.Clock", "_partial_": True, "every_steps": 2}


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "components/train/callbacks"
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(OWN)
    (tmp_path / "components/train/loggers.py").write_text(
        "class TensorBoardCurves(TensorBoardLogger):\n"
        "    def __init__(self, *, folder: RunFolder) -> None: ...\n"
    )
    monkeypatch.setattr(class_specs, "ROOT", tmp_path)
    read_class_specs.cache_clear()
    yield
    read_class_specs.cache_clear()


def with_callbacks(recipe: Recipe, **nodes: Any) -> Recipe:
    return check_recipe(recipe.model_dump(mode="json") | {"callbacks": nodes})


def test_only_callbacks_with_plain_values_are_allowed() -> None:
    assert set(read_class_specs(CallbackSpec)) == {f"{MODULE}.Noise", f"{MODULE}.Clock"}


def test_keys_are_mathematics_unless_the_class_declares_a_group() -> None:
    plain = teuken()
    assert compute_fingerprint(with_callbacks(plain, clock=CLOCK)) == compute_fingerprint(plain)
    noisy = with_callbacks(plain, noise=NOISE, clock=CLOCK)
    assert compute_fingerprint(noisy) != compute_fingerprint(plain)
    groups = split_by_group(noisy.model_dump(mode="json"))
    assert groups[KeyGroup.MATHEMATICS]["callbacks.noise.scale"] == 0.5
    assert groups[KeyGroup.MACHINE]["callbacks.clock.every_steps"] == 2


def test_a_resumed_run_may_change_keys_outside_mathematics() -> None:
    recipe = with_callbacks(teuken(), noise=NOISE, clock=CLOCK)
    moved = update_recipe(
        recipe, {"callbacks.clock.every_steps": 5, "logger.tensorboard": None}
    )
    assert moved.callbacks["clock"]["every_steps"] == 5
    assert moved.logger == {}
    assert "clock" not in update_recipe(recipe, {"callbacks.clock": None}).callbacks
    assert update_recipe(recipe, {"callbacks.second": CLOCK}).callbacks["second"] == CLOCK
    with pytest.raises(RecipeError, match=r"callbacks\.noise\.scale is 0\.5 there, 0\.1 here"):
        update_recipe(recipe, {"callbacks.noise.scale": 0.1})
    with pytest.raises(RecipeError, match=r"callbacks\.clok: unknown key"):
        update_recipe(recipe, {"callbacks.clok": None})


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (CLOCK | {"every_steps": "two"}, r"callbacks\.x\.every_steps: input should be"),
        (CLOCK | {"_partial_": False}, r"callbacks\.x\._partial_: False"),
        (CLOCK | {"folder": "/"}, r"callbacks\.x\.folder: unknown key of"),
        ({"_target_": f"{MODULE}.Clock", "_partial_": True}, r"every_steps: missing"),
        ({"_target_": f"{MODULE}.Needs"}, r"is not an allowed class of callbacks"),
        ({"_target_": f"{MODULE}.torch.load"}, r"is not an allowed class of callbacks"),
        ({"every_steps": 3}, r"callbacks\.x: missing _target_"),
    ],
)
def test_a_wrong_node_is_refused_with_its_path(node: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        with_callbacks(teuken(), x=node)


def test_defaults_of_every_run_are_not_written() -> None:
    tree = teuken().model_dump(mode="json")
    assert not tree.keys() & {"trainer", "callbacks", "logger"}
    assert to_plain(check_recipe(tree).logger) == to_plain(teuken().logger) == to_plain(CURVES)
