"""What Qwen3-Next's ``config.json`` and folders have: older keys, other layers, modules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from command.composition.conf_groups import compose_defaults
from components.config.part_nodes import read_decoder
from components.convert.config_json import check_same, read_config
from components.errors import RecipeError
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import Export, published, random_model
from tests.components.convert.hybrid_section import qwen3_next
from tests.components.convert.test_config_json import overlaid, put, resolved
from tests.components.convert.test_reading import assert_same_bits, edit_tensors, read

NAME = "qwen3_next_80b_a3b"
PARAMETERS = 79_674_391_296  # "80B"


def whole_section(folder: Path, config: dict[str, Any]) -> Section:
    """Return the model section of a ``config.json``, checked against the file."""
    imported = read_config(put(folder, config))
    whole = overlaid(compose_defaults()["model"], imported.section)
    whole |= dict.fromkeys(("vocab_size", "padded_vocab_size"), imported.vocab_size)
    whole = resolved(whole, whole["norm"])
    check_same(imported, whole)
    return whole


def test_published_parameters_are_counted_to_the_unit(tmp_path: Path) -> None:
    config = published(NAME)
    shape = read_decoder(whole_section(tmp_path, config))
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert shape.total_parameters == theirs.num_parameters() == PARAMETERS
    idle = 48 * (512 - 10) * 3 * 2_048 * 512
    assert shape.active_parameters == PARAMETERS - idle


def test_older_keys_give_the_same_model(tmp_path: Path) -> None:
    config = published(NAME)
    older = {
        key: config[key] for key in config if key not in {"rope_parameters", "layer_types"}
    }
    rotation = {"rope_theta": 10_000, "rope_scaling": None, "partial_rotary_factor": 0.25}
    older |= {"full_attention_interval": 4, "use_sliding_window": False, **rotation}
    expected = whole_section(tmp_path, config)
    assert whole_section(tmp_path, older) == expected
    for key in ("full_attention_interval", "partial_rotary_factor"):  # the class's defaults
        del older[key]
    assert whole_section(tmp_path, older) == expected
    denser = read_decoder(whole_section(tmp_path, older | {"full_attention_interval": 2}))
    assert denser.pattern == ("delta/mlp", "attention/mlp")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2, but recipes support only 1"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\], but recipes"),
        ({"layer_types": ["linear_attention"] * 48}, "would be exported as|pattern"),
        ({"layer_types": ["sliding_attention"] * 48}, "sliding_attention"),
        ({"use_sliding_window": True}, "use_sliding_window: True: Qwen3NextForCausalLM has no"),
        ({"full_attention_interval": "4"}, "full_attention_interval: '4' is not an integer"),
        ({"hidden_act": "gelu"}, "hidden_act: unsupported 'gelu'"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.25, "long_factor": 2.0}},
            "rope_parameters.long_factor: unsupported key",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.012}},
            "no Hugging Face class supports this model",
        ),
    ],
)
def test_unsupported_values_are_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=words):
        whole_section(tmp_path, published(NAME) | change)


def test_modules_for_further_tokens_are_ignored(export: Export) -> None:
    model = random_model(qwen3_next())
    folder = export(model, qwen3_next())
    edit_tensors(folder, lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(2, 4)}))
    found = read(folder, qwen3_next())
    assert_same_bits(found, model, rows=qwen3_next()["vocab_size"])
