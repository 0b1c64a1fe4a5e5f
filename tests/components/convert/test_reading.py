"""Exported weights are read back bit by bit; the errors of other folders name the cause."""

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
    """Compare all weights; vocabulary rows from ``rows`` must be zero."""
    for name, value in expected.named_parameters():
        other = found.get_parameter(name)
        if name in {"embedding.weight", "head.weight"}:
            assert not other[rows:].any(), name
            assert torch.equal(value[:rows], other[:rows]), name
        else:
            assert torch.equal(value, other), name


def test_a_lower_precision_is_widened_exactly(export: Export) -> None:
    model = random_model(llama()).to(torch.bfloat16)
    found = read(export(model, llama()), llama())
    assert_same_bits(found, model.float(), rows=llama()["vocab_size"])


def test_older_spellings_of_a_configuration_are_read(export: Export) -> None:
    model = random_model(bloom())
    folder = export(model, bloom())
    edit_config(folder, rename("hidden_size", "n_embed"))
    edit_config(folder, rename("n_head", "num_attention_heads"))
    assert_same_bits(read(folder, bloom()), model, rows=bloom()["vocab_size"])


def test_names_without_prefix_and_a_tied_head_are_read(export: Export) -> None:
    """The published GPT-2 and Bloom lack the prefix and have masks; some repeat tied rows."""
    model = random_model(gpt2())
    folder = export(model, gpt2())

    def as_published(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    edit_tensors(folder, as_published)
    edit_config(folder, lambda config: config.update(activation_function="gelu_pytorch_tanh"))
    assert_same_bits(read(folder, gpt2()), model, rows=gpt2()["vocab_size"])


def test_a_pipeline_stage_reads_only_its_weights(export: Export) -> None:
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


def spoil_config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, lambda config: config.update(changes))


def spoil_tensors(edit: Edit) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, edit)


SCALED = {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("spoil", "section", "message"),
    [
        (
            spoil_config(hidden_size=64, rms_norm_eps=1e-6),
            *(llama(), r"(?s)hidden_size: 64 there, 48 in the recipe.*rms_norm_eps: 1e-06 th"),
        ),
        (spoil_config(rope_parameters=SCALED), llama(), r"rope_scaling: .*linear"),
        (spoil_config(), olmoe(), r"model_type is 'llama', the recipe's .* 'olmoe'"),
        (spoil_config(), llama() | {"vocab_size": 310}, "303 vocabulary rows, .* has 310"),
        (
            spoil_tensors(rename("model.norm.weight", "model.nrom.weight")),
            *(llama(), r"missing: model\.norm\.weight; unknown: model\.nrom\.weight"),
        ),
        (
            spoil_tensors(lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]]),
            *(llama(), r"missing: .* and 13 more"),
        ),
        (
            lambda folder: shutil.move(folder / SINGLE, folder / "pytorch_model.bin"),
            *(llama(), r"pickled weights, \*\.bin, are never read"),
        ),
    ],
)
def test_a_folder_of_another_model_is_refused(spoil, section, message, export):
    folder = export(random_model(llama()), llama())
    spoil(folder)
    with pytest.raises(RecipeError, match=message):
        read(folder, section)


def test_a_different_tokenizer_is_refused_and_none_is_accepted(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    with pytest.raises(RecipeError, match=r"301, but the tokenizer in .* has 300 pieces"):
        read(folder, llama(), pieces=301)
    (folder / "tokenizer.json").unlink()
    read(folder, llama(), pieces=301)


def test_a_tensor_of_another_shape_is_named_before_any_copy(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3, 48)}))
    model = random_model(llama(), seed=2)
    with pytest.raises(RecipeError, match=r"has shape \[3, 48\], .* \[77, 48\]"):
        read_folder(folder, model, section=llama(), tokenizer_vocab_size=PIECES)
    assert_same_bits(model, random_model(llama(), seed=2), rows=320)


@pytest.mark.parametrize("text", [None, "{", "3"])
def test_a_folder_without_a_readable_configuration_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(RecipeError, match=r"config\.json: .*\n  set it to a .* save_pre"):
        read(tmp_path, llama())


@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json", "tokenizer.model"])
def test_files_of_brackets_alone_are_refused_by_name(name: str, export: Export) -> None:
    folder = export(random_model(llama()), llama())
    if name == INDEX:
        (folder / SINGLE).unlink()
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
    (folder / name).write_text("[" * 200_000)
    with pytest.raises(RecipeError, match=re.escape(str(folder / name))):
        read(folder, llama())


@pytest.mark.parametrize("name", ["config.json", "shard.safetensors", "model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_refused(name: str, export: Export) -> None:
    folder = export(random_model(llama()), llama())
    if name.endswith(".safetensors"):
        (folder / SINGLE).unlink()
        (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    else:
        (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RecipeError):
        read(folder, llama())


def test_a_model_with_an_unmapped_part_is_a_bug(export: Export) -> None:
    folder = export(random_model(llama()), llama())
    model = random_model(llama())
    model.extra = nn.Linear(2, 2)
    unmapped = r"no weights are mapped to \['extra\.bias', 'extra\.weight'\]"
    with pytest.raises(AssertionError, match=unmapped):
        read_folder(folder, model, section=llama(), tokenizer_vocab_size=PIECES)
