"""What predicts further tokens is counted beside the model, and refused where it cannot be."""

import json
from pathlib import Path

import pytest
import torch

from components.build import build_node
from components.config.model_spec.mtp import MTPSpec
from components.config.part_nodes import read_decoder
from components.config.schema.types import to_plain
from components.convert.experts import DEEPSEEK_V3
from components.errors import RecipeError
from tests.components.config.test_features import compose
from tests.components.convert.test_open_models import section_of

DEEPSEEK = Path(__file__).parents[2] / "data/hugging_face/deepseek_v3.json"
MTP = (
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, "
    "loss_weight: 0.3, depth: "
)


def test_deepseek_v3_has_11_61_billion_beside_its_671() -> None:
    """README_WEIGHTS.md says 11.5e9 "unique parameters"; this is the count."""
    config = json.loads(DEEPSEEK.read_text("utf-8")) | {"num_nextn_predict_layers": 1}
    imported, _ = DEEPSEEK_V3.import_section(config)
    shape = read_decoder(section_of(config) | {"mtp": imported["mtp"]})
    dim, expert = 7_168, 3 * 7_168 * 2_048
    layer = 187_107_328 + 256 * dim + 257 * expert + 2 * dim  # without the router's biases
    assert shape.mtp_parameters == layer + 2 * dim**2 + 3 * dim == 11_610_067_968
    assert shape.total_parameters == 671_026_404_352


@pytest.mark.parametrize("recipe", ["teuken7b", "mula7b_a1b"])
def test_the_model_has_what_is_counted_and_no_more(recipe: str) -> None:
    plain, more = compose(recipe), compose(recipe, f"{MTP}2}}")
    with torch.device("meta"):
        model = build_node(to_plain(more.model), "model")
    named = dict(model.named_parameters())
    further = sum(one.numel() for name, one in named.items() if name.startswith("mtp."))
    counts = more.derived_numbers.parameters
    assert counts.mtp == further > 0
    assert counts.total == plain.derived_numbers.parameters.total
    assert "mtp" not in plain.derived_numbers.model_dump()["parameters"]
    assert more.derived_numbers.model_dump()["parameters"]["mtp"] == further


def test_flops_are_those_of_one_more_layer_a_map_and_the_head() -> None:
    plain, more = (
        compose("teuken7b", "scale=full"),
        compose("teuken7b", f"{MTP}2}}", "scale=full"),
    )
    dim, rows, length = 4_096, 250_680, plain.budget.sequence_length
    layer = 2 * dim**2 + 2 * dim * 256 + 3 * dim * 13_440  # attention of two groups, and MLP
    multiplied = layer + 2 * dim**2 + dim * rows + 5 * dim  # five norms
    before, after = plain.derived_numbers.flops_per_token, more.derived_numbers.flops_per_token
    assert after.full - before.full == 2 * (6 * multiplied + 12 * dim * length)
    assert after.causal - before.causal == 2 * (6 * multiplied + 6 * dim * length)


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        ("teuken7b", ("model.z_loss=1e-5",), r"model\.z_loss: .*\n.*model\.mtp=null"),
        (
            "gpt3b6",
            (),
            r"model\.mtp: .* does not support model\.positions\.num_positions\n.*null",
        ),
        (
            "bloom560m",
            (),
            r"model\.mtp: .* does not support model\.embedding_norm\n.*null",
        ),
        (
            "teuken7b",
            ("budget.sequence_length=2", "budget.global_batch_tokens=4_096"),
            r"model\.mtp\.depth: 2 is more than sequence_length - 1 = 1\n.*depth=1",
        ),
        (
            "teuken7b",
            ("model.mtp.depth=0",),
            r"model\.mtp\.depth: .* greater than 0, got 0",
        ),
    ],
)
def test_what_no_embedding_or_sequence_reaches_is_refused(
    recipe: str, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        compose(recipe, f"{MTP}2}}", *words)


def test_a_depth_begins_like_the_last_layer_and_ends_at_the_head() -> None:
    shape = compose("mula7b_a1b").decoder_spec
    deeper = shape.model_copy(update={"mtp": MTPSpec(depth=3, loss_weight=0.1)})
    assert (shape.mtp_depth, shape.mtp_parameters, shape.shares_ends) == (0, 0, False)
    assert deeper.mtp_parameters == 3 * (shape.layer_parameters + shape.mtp_whole_parameters)
    assert deeper.shares_ends
