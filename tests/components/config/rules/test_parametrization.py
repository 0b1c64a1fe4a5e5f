"""What no rule of a parametrization is stated for is refused; miniatures keep its base."""

from copy import deepcopy

import pytest

from components.config.scale_down import _narrow
from components.config.schema.types import to_plain
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from tests.components.config.test_features import compose
from tests.components.config.test_newer_parts import LATENT

ROOM = "components.model.parametrization"
MUP = f"model.parametrization={{_target_: {ROOM}.MuP, _partial_: true, base_dim: 2048}}"
COMPLETEP = (
    f"model.parametrization={{_target_: {ROOM}.CompleteP, _partial_: true, base_dim: 2048, "
    "base_layers: 8}"
)
PLAIN = "model.initialization.residual=plain"
MTP = (
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, "
    "depth: 1, loss_weight: 0.3}"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (MUP.replace("2048", "1000"),),
            r"parametrization\.base_dim: 1,000 is not a multiple of the head unit, 2,048"
            r"\n  nearest valid value: 2_048",
        ),
        (
            (MUP, "model.initialization.std=fan_in"),
            r"initialization\.std: .* one std .*\n.*0\.02",
        ),
        ((COMPLETEP,), r"initialization\.residual: .* depth factor\n.*plain"),
        (
            (COMPLETEP, PLAIN, "model.norm_placement=after"),
            r"model\.norm_placement: .* norms before branches\n.*before",
        ),
        (
            (MUP, "model.embedding_scale=sqrt_dim"),
            r"embedding_scale: .* plain embeddings\n.*none",
        ),
        ((MUP, *LATENT), r"key_value_rank: .* attention without latent vectors"),
        (
            (MUP, MTP),
            r"model\.mtp: .* models without multi-token prediction\n.*model\.mtp=null",
        ),
        ((MUP, "optimizer=muon"), r"optimizer: .* the updates of AdamW\n.*optimizer=adamw"),
        ((MUP, "optimizer=adam"), r"optimizer: .* the updates of AdamW\n.*optimizer=adamw"),
        (
            (MUP.replace("2048", "0"),),
            r"model\.parametrization\.base_dim: .* greater than 0, got 0",
        ),
    ],
)
def test_what_has_no_rule_is_refused_with_a_way_out(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        compose("teuken7b", "scale=full", *words)


@pytest.mark.parametrize("optimizer", ["adamw", "ademamix"])
def test_what_has_a_rule_is_taken(optimizer: str) -> None:
    found = compose("teuken7b", "scale=full", COMPLETEP, PLAIN, f"optimizer={optimizer}")
    base = found.decoder_spec.parametrization
    assert base is not None
    assert (base.base_dim, base.base_layers, base.depth_exponent) == (2_048, 8, 1.0)


def test_a_miniature_has_the_rate_of_the_base_and_whole_heads_of_it() -> None:
    full, small = (compose("teuken7b", f"scale={scale}", MUP) for scale in ("full", "parity"))
    plain = compose("teuken7b", "scale=parity")
    assert plain.optimizer["lr"] > full.optimizer["lr"]  # without a base it follows the width
    assert small.optimizer["lr"] == full.optimizer["lr"]
    assert not isinstance(plain.scale.shrink, str)
    model = to_plain(full.model)
    model["parametrization"]["base_dim"] = 1_000  # of a recipe: what the user names is final
    tree = {"model": deepcopy(model), "optimizer": {"lr": 1e-3}, "precision": {"compute": ""}}
    _narrow(tree, plain.scale.shrink, UserOverrides([]), model)
    assert (tree["model"]["dim"], tree["model"]["attention"]["num_kv_heads"]) == (64, 2)
    assert tree["model"]["parametrization"]["base_dim"] == 992  # 31 times half of 64
    assert tree["optimizer"]["lr"] == 1e-3
