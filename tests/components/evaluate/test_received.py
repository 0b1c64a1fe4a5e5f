"""Unknown files, keys and values of a received model folder never reach `transformers`."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from components.errors import RecipeError
from components.evaluate.received import read_received, staged_folder
from tests.components.data.test_byte_bpe import make, words

CONFIG: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
CONFIG |= {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
CONFIG |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 400}
CONFIG |= {"hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 64}
CONFIG |= {"tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}
CONFIG |= {"torch_dtype": "float32"}
LAYER = {
    **{f"self_attn.{map_name}_proj": (16, 16) for map_name in "qkvo"},
    **{f"mlp.{map_name}_proj": (32, 16) for map_name in ("gate", "up")},
    "mlp.down_proj": (16, 32),
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (16,)),
}
SHAPES = {
    "model.embed_tokens.weight": (400, 16),
    "model.norm.weight": (16,),
    **{f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    make().train_on_texts(words(), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{% loop %}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def change(folder: Path, **keys: object) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **keys}))


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(RecipeError, match=message), staged_folder(folder):
        pass


def test_only_known_files_and_keys_are_staged(folder: Path) -> None:
    change(folder, _name_or_path="x", attn_implementation="eager", use_cache=False)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')
    (folder / "modeling.py").write_text("raise SystemExit")
    with staged_folder(folder) as staged:
        config = json.loads((staged / "config.json").read_text())
        settings = json.loads((staged / "tokenizer_config.json").read_text())
        assert sorted(file.name for file in staged.iterdir()) == [
            *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
        ]
    assert not config.keys() & {"_name_or_path", "attn_implementation", "use_cache"}
    assert config["hidden_size"] == 16
    assert settings == {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attn_implementation": "a/kernel"}, "attn_implementation: 'a/kernel' is not one of"),
        ({"_attn_implementation": "a/kernel"}, "_attn_implementation: 'a/kernel' is not one"),
        ({"torch_dtype": "os.system"}, "torch_dtype: 'os.system' is not one of float32"),
        ({"quantization_config": {"a": 1}}, "quantization_config: .* LlamaForCausalLM has no"),
        ({"use_kernels": True}, "use_kernels: True: LlamaForCausalLM"),
        ({"hidden_size": -1}, "hidden_size: -1 is not an integer"),
        ({"hidden_size": 1 << 40}, "hidden_size: 1,099,511,627,776, but the files have 9,008"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers: .* but the files have"),
        ({"num_hidden_layers": 5_000}, "num_hidden_layers: 5,000, but .* 11 tensors"),
        ({"vocab_size": 1 << 40}, "vocab_size: .* but the files have"),
        ({"model_type": "someone"}, "model_type: unknown model family 'someone'"),
    ],
)
def test_unknown_keys_or_values_are_refused(folder, keys: dict[str, Any], message: str) -> None:
    change(folder, **keys)
    assert_refused(folder, rf"config\.json: {message}")


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert_refused(folder, r"has no tokenizer\.json")


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40) + b"{}",
        {"a": {**ONE, "data_offsets": [0, 1 << 40]}},
        {"a": {**ONE, "data_offsets": [4, 0]}},
        {"a": {**ONE, "shape": [1 << 62, 1 << 62]}},
        {"a": {**ONE, "shape": [-1]}},
        {"a": {**ONE, "dtype": "Q4"}},
        {"a": ONE, "b": ONE},
        {"a": 7},
        {},
    ],
)
def test_hostile_headers_of_safetensors_are_refused(folder: Path, header: Any) -> None:
    raw = header
    if isinstance(header, dict):
        text = json.dumps(header).encode()
        raw = struct.pack("<Q", len(text)) + text + b"\0" * 4
    (folder / "model.safetensors").write_bytes(raw)
    assert_refused(folder, r"safetensors: cannot|the files have")


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_act": "os.system"}, "KeyError: 'os.system'"),
        ({"rope_scaling": {"rope_type": "nonsense"}}, "KeyError: 'nonsense'"),
        ({"num_hidden_layers": 2}, r"config\.json needs .* weights, the files have"),
        ({"tie_word_embeddings": False}, r"config\.json needs .* weights, the files have"),
        ({"pad_token_id": 10**9}, "Padding_idx"),
    ],
)
def test_folders_that_transformers_cannot_load_are_refused(folder, keys, message):
    with staged_folder(folder) as staged:
        model, tokenizer = read_received(staged, "auto", folder)
    assert (len(tokenizer), model.config.vocab_size) == (400, 400)
    change(folder, **keys)
    refused = pytest.raises(RecipeError, match=rf"transformers cannot load it: .*{message}")
    with staged_folder(folder) as staged, refused as caught:
        read_received(staged, "auto", folder)
    assert caught.value.path == str(folder)
