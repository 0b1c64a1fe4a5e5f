"""Modules for further tokens have DeepSeek-V3's published names, or are not exported.

deepseek-ai/DeepSeek-V3 lists the names in README_WEIGHTS.md and in its index of weights.
"""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from components.convert.config_json import read_config
from components.convert.reading import read_folder
from components.errors import RecipeError
from tests.components.convert.conftest import PIECES, Export, deepseek_v3, llama, random_model
from tests.components.convert.test_parity import tokens

MTP = {"_target_": "components.model.mtp.MultiTokenPrediction", "_partial_": True}
MTP |= {"depth": 1, "loss_weight": 0.3}
FIRST = "model.layers.3."


def test_weights_have_published_names_that_the_class_ignores(export: Export) -> None:
    section = deepseek_v3() | {"mtp": MTP}
    model = random_model(section)
    folder = export(model, section)
    found: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    theirs, loading = found
    assert not loading["missing_keys"]
    assert all(name.startswith(FIRST) for name in loading["unexpected_keys"])
    assert theirs.config.num_nextn_predict_layers == 1
    rows = section["vocab_size"]
    logits = model.eval()(tokens())[..., :rows]
    torch.testing.assert_close(theirs(tokens()).logits, logits, atol=1e-5, rtol=1e-5)
    written = load_file(folder / "model.safetensors")
    layer = {name.removeprefix(FIRST) for name in written if name.startswith(FIRST)}
    last = {name.removeprefix("model.layers.2.") for name in written if ".layers.2." in name}
    own = {"enorm", "hnorm", "eh_proj", "embed_tokens", "shared_head.norm", "shared_head.head"}
    assert layer == last | {f"{name}.weight" for name in own}
    shared = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
    for copy, original in shared.items():
        assert torch.equal(written[f"{FIRST}{copy}.weight"], written[f"{original}.weight"])
    projection = model.get_parameter("mtp.3.projection.weight")
    assert torch.equal(written[f"{FIRST}eh_proj.weight"], projection)


def test_a_folder_is_read_with_and_without_further_tokens(export: Export) -> None:
    section = deepseek_v3() | {"mtp": MTP}
    model = random_model(section)
    folder = export(model, section)
    for wanted in (section, deepseek_v3()):
        read = random_model(wanted, seed=2)
        read_folder(folder, read, section=wanted, tokenizer_vocab_size=PIECES)
        for name, value in read.named_parameters():
            rows = section["vocab_size"]
            cut = slice(rows if name in {"embedding.weight", "head.weight"} else None)
            assert torch.equal(value[cut], model.get_parameter(name)[cut]), name
    assert read_config(folder).section["mtp"] == MTP


def test_a_class_without_further_tokens_gets_the_model_only(export: Export) -> None:
    section = llama() | {"mtp": MTP}
    folder = export(random_model(section), section)
    found: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(found[1][kind] for kind in ("missing_keys", "unexpected_keys"))
    with pytest.raises(RecipeError, match=r"model\.mtp: these weights have no multi-token"):
        read_folder(folder, random_model(section), section=section, tokenizer_vocab_size=PIECES)


def test_a_folder_without_its_configured_weights_is_refused(export: Export) -> None:
    section = deepseek_v3()
    folder = export(random_model(section), section)
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    further = section | {"mtp": read_config(folder).section["mtp"]}
    with pytest.raises(RecipeError, match=r"missing: .*model\.layers\.3\."):
        read_folder(folder, random_model(further), section=further, tokenizer_vocab_size=PIECES)
