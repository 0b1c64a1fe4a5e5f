"""Numbers of the parts that a recipe names: refused where it is composed, without torch."""

import math
from typing import Annotated, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components import ranges
from components.config.part_nodes import check_nodes
from components.errors import RecipeError
from tests.components.config.helpers import teuken

# What each range ends at: values just inside, and just outside.
EDGES: dict[str, tuple[list[float], list[float]]] = {
    "Count": ([1, 10**18], [0, -1, 10**18 + 1]),
    "Tokens": ([0, 1, 10**18], [-1, 10**18 + 1]),
    "Ranks": ([1, 1_000_000], [0, 1_000_001]),
    "Heads": ([1, 100_000], [0, 100_001]),
    "Layers": ([1, 10_000], [0, 10_001]),
    "Positive": ([5e-324, 1, 1e300], [0.0, -1, math.inf, math.nan]),
    "NonNegative": ([0, 0.0, 1e300], [-5e-324, math.inf, math.nan]),
    "Share": ([0, 1, 0.5], [-5e-324, math.nextafter(1, 2), math.nan]),
    "PositiveShare": ([5e-324, 0.5, 1], [0, -0.5, math.nextafter(1, 2), math.nan]),
    "BelowOne": ([0, math.nextafter(1, 0)], [-0.1, 1, 1.0, math.nan]),
}


def test_every_range_includes_its_bounds_as_stated() -> None:
    named = {name for name, kind in vars(ranges).items() if get_origin(kind) is Annotated}
    assert named == {*EDGES, "Place"}  # which is a text
    for name, (inside, outside) in EDGES.items():
        kind = TypeAdapter(getattr(ranges, name))
        for value in inside:
            assert kind.validate_python(value, strict=True) == value
        for value in outside:
            with pytest.raises(ValidationError):
                kind.validate_python(value, strict=True)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("beta1", "1.0", "less than 1"),
        ("beta2", "-0.1", "greater than or equal to 0"),
        ("lr", "0.0", "greater than 0"),
        ("lr", "-1", "greater than 0"),
        ("lr", "nan", "a finite number"),
        ("eps", "0.0", "greater than 0"),
        ("weight_decay", "-0.1", "greater than or equal to 0"),
        ("clip_norm", "0.0", "greater than 0"),
        ("clip_norm", "inf", "a finite number"),
        ("clip_after_tokens", "-1", "greater than or equal to 0"),
    ],
)
def test_an_optimizer_refuses_numbers_out_of_range(key: str, value: str, rule: str) -> None:
    rate = [] if key == "lr" else ["optimizer.lr=1e-4"]
    with pytest.raises(RecipeError) as caught:
        teuken("optimizer=adamw", *rate, f"optimizer.{key}={value}")
    assert str(caught.value).startswith(
        f"optimizer.{key}: input should be {rule}, got {value}\n  write "
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("schedule.phases.first.total_tokens=0", "greater than 0"),
        ("schedule.phases.first.warmup_tokens=-1", "greater than or equal to 0"),
        ("schedule.phases.first.warmup_from=-0.1", "greater than or equal to 0"),
        ("schedule.phases.first.start=3.0", "less than or equal to 1"),
        ("schedule.phases.first.end=-0.1", "greater than or equal to 0"),
        ("model.dropout=1.0", "less than 1"),
        ("model.attention.dropout=-0.1", "greater than or equal to 0"),
        ("model.norm.eps=-0.1", "greater than or equal to 0"),
        ("model.positions.base=0.0", "greater than 0"),
        ("model.initialization.std=-0.1", "greater than or equal to 0"),
        ("tokenizer.num_threads=0", "greater than 0"),
        ("tokenizer.character_coverage=1.5", "less than or equal to 1"),
        ("precision.loss_scale.minimum=0.0", "greater than 0"),
    ],
)
def test_other_parts_refuse_numbers_out_of_range(word: str, message: str) -> None:
    key, _, value = word.partition("=")
    with pytest.raises(RecipeError) as caught:
        teuken("precision=fp16", word)
    assert caught.value.path == key
    assert message in str(caught.value)
    assert value.rstrip("0") in str(caught.value)


@pytest.mark.parametrize("key", ["auxiliary_loss", "z_loss"])
def test_a_router_is_not_rewarded_for_an_uneven_load(key: str) -> None:
    with pytest.raises(RecipeError, match=rf"^model\.mlp\.{key}: .* 0, got -0\.5\n"):
        compose_recipe(read_point(["recipe=mula7b_a1b", f"model.mlp.{key}=-0.5"]))


def test_a_wrong_type_is_named_without_a_range() -> None:
    node = {"_target_": "components.model.norms.Norm", "_partial_": True, "eps": "small"}
    with pytest.raises(RecipeError, match=r"model\.norm\.eps: .* valid number, got 'small'\n"):
        check_nodes({"model": {"norm": node}})
    with pytest.raises(RecipeError, match=r"model\.norm\.eps: .* valid number, got True\n"):
        check_nodes({"model": {"norm": node | {"eps": True}}})


@pytest.mark.parametrize("action", ["show", "plan", "train"])
def test_every_action_that_composes_refuses_what_training_would(action, capfd):
    words = ["recipe=teuken7b", f"action={action}", "optimizer.lr=-1"]
    assert main(words) == 2
    assert capfd.readouterr().err == (
        "optimizer.lr: input should be greater than 0, got -1\n  write a number above 0\n"
    )


def test_a_lock_with_invalid_values_is_not_verified(tmp_path, capfd):
    lock = tmp_path / "x.lock.yaml"
    assert main(["recipe=teuken7b", "action=pack", "optimizer.lr=1e-4", f"file={lock}"]) == 0
    text = lock.read_text("utf-8")
    assert "optimizer.lr: 0.0001" in text
    lock.write_text(text.replace("optimizer.lr: 0.0001", "optimizer.lr: -1"), "utf-8")
    capfd.readouterr()
    assert main(["action=verify", f"file={lock}"]) == 2
    assert "optimizer.lr: input should be greater than 0, got -1" in capfd.readouterr().err
