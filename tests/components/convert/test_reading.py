"""What was exported comes back in the same bits; what is no such folder is refused by name."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from components.convert.hf_shards import INDEX, SINGLE
from components.convert.reading import read_folder
from components.errors import RecipeError
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import (
    PIECES,
    Export,
    bloom,
    gpt2,
    llama,
    olmoe,
    random_model,
)

Edit = Callable[[dict[str, Any]], object]


def read(folder: Path, section: Section, *, pieces: int = PIECES) -> nn.Module:
    model = random_model(section, seed=2)
    read_folder(folder, model, section=section, tokenizer_vocab_size=pieces)
    return model


def assert_same_bits(found: nn.Module, expected: nn.Module, *, rows: int) -> None:
    """Vocabulary rows beyond ``rows`` are zero; all else is equal."""
    for name, value in expected.named_parameters():
        other = found.get_parameter(name)
        if name in {"embedding.weight", "head.weight"}:
            assert not other[rows:].any(), name
            assert torch.equal(value[:rows], other[:rows]), name
        else:
            assert torch.equal(value, other), name


@pytest.mark.parametrize("rows", ["published", "padded"])
@pytest.mark.parametrize("shard_bytes", [6_000, 5_000_000_000])
def test_a_round_trip_keeps_every_bit(
    section: Section, export: Export, rows: str, shard_bytes: int
) -> None:
    model = random_model(section)
    folder = export(model, section, rows=rows, max_shard_bytes=shard_bytes)
    assert (folder / INDEX).exists() == (shard_bytes < 10_000)
    kept = {"published": "vocab_size", "padded": "padded_vocab_size"}[rows]
    assert_same_bits(read(folder, section), model, rows=section[kept])


def test_what_transformers_saves_is_read_too(section: Section, export: Export) -> None:
    """Also written anew by the other side: other keys, other spellings, stacked experts."""
    model = random_model(section)
    folder = export(model, section)
    again = folder.with_name("again")
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(again)
    assert_same_bits(read(again, section), model, rows=section["vocab_size"])


def test_a_lower_precision_is_widened_exactly(export: Export) -> None:
    model = random_model(llama()).to(torch.bfloat16)
    found = read(export(model, llama()), llama())
    assert_same_bits(found, model.float(), rows=llama()["vocab_size"])


def test_older_spellings_of_a_configuration_are_understood(export: Export) -> None:
    model = random_model(bloom())
    folder = export(model, bloom())
    edit_config(folder, rename("hidden_size", "n_embed"))
    edit_config(folder, rename("n_head", "num_attention_heads"))
    assert_same_bits(read(folder, bloom()), model, rows=bloom()["vocab_size"])


def test_another_spelling_of_the_same_activation_is_understood(export: Export) -> None:
    folder = export(random_model(gpt2()), gpt2())
    edit_config(folder, lambda config: config.update(activation_function="gelu_pytorch_tanh"))
    read(folder, gpt2())


def test_names_without_prefix_buffers_and_a_tied_head_are_understood(export: Export) -> None:
    """The published GPT-2 and Bloom lack the prefix, and hold masks; some repeat tied rows."""
    model = random_model(gpt2())
    folder = export(model, gpt2())

    def as_published(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    edit_tensors(folder, as_published)
    assert_same_bits(read(folder, gpt2()), model, rows=gpt2()["vocab_size"])


def test_a_stage_of_the_model_takes_only_what_it_holds(export: Export) -> None:
    whole = random_model(llama())
    folder = export(whole, llama())
    stage = random_model(llama(), seed=3)
    del stage.layers["0"]  # type: ignore[operator, union-attr]  # a ModuleDict
    del stage.final_norm
    read_folder(folder, stage, section=llama(), tokenizer_vocab_size=PIECES)
    for name, value in stage.named_parameters():
        if name != "embedding.weight":
            assert torch.equal(value, whole.get_parameter(name)), name


def edit_config(folder: Path, edit: Edit) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    edit(config)
    file.write_text(json.dumps(config))


def edit_tensors(folder: Path, edit: Edit) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def rename(old: str, new: str) -> Edit:
    return lambda tree: tree.update({new: tree.pop(old)})


def test_every_difference_of_the_configuration_is_named(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    edit_config(folder, lambda config: config.update(hidden_size=64, rms_norm_eps=1e-6))
    with pytest.raises(RecipeError, match="differs from the recipe's model") as caught:
        read(folder, llama())
    assert "hidden_size: 64 there, 48 in the recipe" in str(caught.value)
    assert "rms_norm_eps: 1e-06 there, 1e-05 in the recipe" in str(caught.value)


def test_scaled_rotary_positions_are_another_model(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    scaled = {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}
    edit_config(folder, lambda config: config.update(rope_parameters=scaled))
    with pytest.raises(RecipeError, match=r"rope_scaling: .*linear"):
        read(folder, llama())


def test_another_family_is_refused(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    with pytest.raises(RecipeError, match=r"model_type is 'llama', the recipe's .* 'olmoe'"):
        read(folder, olmoe())


def test_another_number_of_rows_is_refused(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    section = llama() | {"vocab_size": 310}
    with pytest.raises(RecipeError, match="has 303 vocabulary rows, the recipe has 310"):
        read(folder, section)


def test_another_tokenizer_is_refused(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    with pytest.raises(RecipeError, match=r"301, but the tokenizer in .* has 300 pieces"):
        read(folder, llama(), pieces=301)


def test_weights_without_a_tokenizer_are_read(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    (folder / "tokenizer.json").unlink()
    read(folder, llama(), pieces=301)


def test_missing_and_unknown_tensors_are_named(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    edit_tensors(folder, rename("model.norm.weight", "model.nrom.weight"))
    wanted = r"missing: model\.norm\.weight; unknown: model\.nrom\.weight"
    with pytest.raises(RecipeError, match=wanted):
        read(folder, llama())


def test_many_missing_tensors_are_counted(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    edit_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]])
    with pytest.raises(RecipeError, match=r"missing: .* and 13 more"):
        read(folder, llama())


def test_a_tensor_of_another_shape_is_named_before_anything_is_copied(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3, 48)}))
    model = random_model(llama(), seed=2)
    with pytest.raises(RecipeError, match=r"has shape \[3, 48\], .* \[77, 48\]"):
        read_folder(folder, model, section=llama(), tokenizer_vocab_size=PIECES)
    assert_same_bits(model, random_model(llama(), seed=2), rows=320)


@pytest.mark.parametrize("text", [None, "{", "3"])
def test_a_folder_without_a_readable_configuration_is_refused(
    text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json: .*\n  set it to a .* save_pre"):
        read(tmp_path, llama())


BRACKETS = "[" * 200_000


@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", "tokenizer.model"])
def test_files_of_nothing_but_brackets_are_refused_by_name(name: str, export: Export) -> None:
    folder = export(random_model(llama()), llama())
    if name == INDEX:
        (folder / SINGLE).unlink()
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    (folder / name).write_text(BRACKETS)
    with pytest.raises(RecipeError, match=re.escape(str(folder / name))):
        read(folder, llama())


@pytest.mark.parametrize("name", ["config.json", "shard.safetensors", "model.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, export: Export) -> None:
    folder = export(random_model(llama()), llama())
    if name.endswith(".safetensors"):
        (folder / SINGLE).unlink()
        (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    else:
        (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RecipeError):
        read(folder, llama())


def test_a_model_with_parts_of_its_own_is_a_bug(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    model = random_model(llama())
    model.extra = nn.Linear(2, 2)
    with pytest.raises(
        AssertionError, match=r"no weights are mapped to \['extra\.bias', 'extra\.weight'\]"
    ):
        read_folder(folder, model, section=llama(), tokenizer_vocab_size=PIECES)


def test_pickled_weights_are_not_read(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    shutil.move(folder / SINGLE, folder / "pytorch_model.bin")
    with pytest.raises(RecipeError, match=r"pickled weights, \*\.bin, are never read"):
        read(folder, llama())
