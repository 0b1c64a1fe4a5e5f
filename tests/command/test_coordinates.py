"""``action=parity kind=coordinates``: what is flat by width is told from what grows."""

import json
import math
from typing import Any

import pytest

from command import coordinates as action
from command.arguments import read_point
from command.main import main
from components.errors import RecipeError
from components.parity import coordinates
from components.parity.coordinates import Coordinates, resize_recipe

ROOM = "components.model.parametrization"
MUP = f"model.parametrization={{_target_: {ROOM}.MuP, _partial_: true, base_dim: 512}}"
COMPLETEP = (
    f"model.parametrization={{_target_: {ROOM}.CompleteP, _partial_: true, base_dim: 512, "
    "base_layers: 8}"
)
PLAIN = "model.initialization.residual=plain"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure less: up to a fourth of the width, from two seeds."""
    monkeypatch.setattr(coordinates, "WIDTHS", (1, 4))
    monkeypatch.setattr(coordinates, "DEPTHS", (2, 8))
    monkeypatch.setattr(coordinates, "SEEDS", 2)


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["action=parity", "kind=coordinates", "output=json", *words])
    return status, json.loads(capsys.readouterr().out)


def grown(tree: Any, axis: str, of: str) -> dict[str, float]:
    rows = [row for row in tree["rows"] if (row["axis"], row["of"]) == (axis, of)]
    return {row["kind"]: row["slope"] for row in rows}


@pytest.mark.usefixtures("few")
def test_completep_is_flat_by_width_and_depth(capsys: pytest.CaptureFixture[str]) -> None:
    status, tree = checked(capsys, "recipe=teuken7b", COMPLETEP, PLAIN)
    assert (status, tree["flat"]) == (0, True)
    assert grown(tree, "width", "start")["logits"] == pytest.approx(-0.5, abs=0.1)
    assert sum(row["judged"] for row in tree["rows"]) == 14  # all but the logits at the start


@pytest.mark.usefixtures("few")
def test_standard_parametrization_grows_and_has_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, tree = checked(capsys, "recipe=teuken7b")
    assert (status, tree["flat"]) == (0, None)
    assert min(grown(tree, "width", "change").values()) > 0.3
    assert grown(tree, "depth", "change")["residual"] > 0.5


@pytest.mark.usefixtures("few")
def test_learning_rates_that_do_not_follow_the_width_are_detected(capsys, monkeypatch):
    monkeypatch.setattr("components.engine.optimizer.scale_groups", lambda *_: None)
    assert main(["action=parity", "kind=coordinates", "recipe=teuken7b", MUP]) == 1
    shown = capsys.readouterr().out
    assert "NOT FLAT" in shown
    assert "mean activation size by depth" in shown


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("recipe=teuken7b", MUP),
        ("recipe=teuken7b", COMPLETEP, PLAIN),
        ("recipe=mula7b_a1b", MUP),
        ("recipe=bloom560m", COMPLETEP, PLAIN),
        ("recipe=olmo2_1b", MUP),
    ],
    ids=["dense", "depth", "experts", "biases and learned norms", "norms after"],
)
def test_every_family_is_flat_over_sixteen_times_the_width(words, capsys):
    status, tree = checked(capsys, *words)
    assert (status, tree["flat"]) == (0, True), tree["rows"]


def test_a_slope_is_the_exponent_of_a_power() -> None:
    sizes = {64: 3.0, 128: 3.0 * 2**0.5, 256: 6.0}
    row = Coordinates("mlp", "change", "width", sizes)
    assert row.growth_exponent == pytest.approx(0.5)
    assert row.growth_ratio == pytest.approx(2.0)
    assert not row.is_flat
    assert not Coordinates("mlp", "change", "width", {64: 1.0, 128: math.nan}).is_flat


def test_a_wider_model_has_more_heads_of_the_same_width() -> None:
    recipe = action.compose_narrowest(read_point(["recipe=mula7b_a1b", COMPLETEP, PLAIN]))
    base = recipe.decoder_spec.parametrization
    assert base is not None
    assert (base.base_dim, base.base_layers) == (recipe.decoder_spec.dim, 2)
    wide = resize_recipe(recipe, factor=4, num_layers=3).decoder_spec
    assert (wide.dim, wide.num_layers) == (4 * recipe.decoder_spec.dim, 3)
    assert wide.attention.num_heads == 4 * recipe.decoder_spec.attention.num_heads
    assert wide.attention.num_kv_heads == 4 * recipe.decoder_spec.attention.num_kv_heads
    assert wide.attention.head_dim == recipe.decoder_spec.attention.head_dim
    assert wide.mlp.ffn_dim == 4 * recipe.decoder_spec.mlp.ffn_dim
    assert wide.mlp.num_experts == recipe.decoder_spec.mlp.num_experts


def test_keys_that_the_check_sets_are_refused() -> None:
    for word in ("precision.compute=float64", "cluster.ranks=2", "model.dropout=0.1"):
        with pytest.raises(RecipeError, match=r"kind=coordinates sets "):
            action.compose_narrowest(read_point(["recipe=teuken7b", word]))


@pytest.mark.parametrize(
    ("of", "sizes", "slope"),
    [
        ("start", (0.0, 0.0, 0.0), 0.0),  # a projection that starts at zero
        ("change", (0.0, 0.0, 0.0), math.nan),
        ("change", (0.0, 1.0, 2.0), math.nan),
        ("start", (math.nan, 1.0, 2.0), math.nan),
        ("change", (1.0, math.inf, 2.0), math.nan),
        ("change", (1.0, 2.0, 4.0), 1.0),
    ],
)
def test_zero_or_infinite_sizes_have_no_slope(of, sizes, slope):
    row = Coordinates("mlp", of, "width", dict(zip((2, 4, 8), sizes, strict=True)))
    assert row.growth_exponent == pytest.approx(slope, nan_ok=True)
    assert row.is_flat == (slope == 0.0)
    assert math.isnan(row.growth_ratio) == math.isnan(slope)


@pytest.mark.long
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("rate", ["1e-30", "1e30"])
def test_a_rate_that_changes_nothing_or_everything_is_not_flat(rate, capsys):
    words = ("recipe=teuken7b", COMPLETEP, PLAIN, f"optimizer.lr={rate}")
    status, tree = checked(capsys, *words)
    assert (status, tree["flat"]) == (1, False)
    assert None in grown(tree, "width", "change").values()
    assert main(["action=parity", "kind=coordinates", *words]) == 1
    assert "NOT FLAT" in capsys.readouterr().out
