"""What is exported computes, in ``transformers``, what it computes here, gradients included."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.convert.family import choose_family
from components.convert.folder import their_tensors
from components.convert.hf_shards import INDEX
from tests.components.convert.base_section import Section
from tests.components.convert.conftest import (
    CONTEXT_TOKENS,
    PIECES,
    SECTIONS,
    Export,
    export_to,
    llama,
    random_model,
)
from tests.components.convert.hybrid_section import rename_tensors
from tests.components.convert.test_reading import assert_same_bits, read

# Both sides sum the same float32 numbers in a different order.
LOGITS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


def tokens() -> Tensor:
    """Draw ids from 4: Llama's class computes no gradient for its padding token, 3."""
    return torch.randint(4, PIECES, (2, CONTEXT_TOKENS), generator=torch.manual_seed(5))


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def distance(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).norm() / expected.norm())


class Exported(NamedTuple):
    """A model, and what ``transformers`` loads from its folder of many shards."""

    section: Section
    model: nn.Module
    folder: Path
    theirs: Any
    loading: Any


@pytest.fixture(scope="module", params=SECTIONS)
def exported(request, byte_bpe, tmp_path_factory) -> Exported:
    section, target = SECTIONS[request.param](), tmp_path_factory.mktemp("hf") / "exported"
    model = random_model(section)
    folder = export_to(target, byte_bpe, model, section, max_shard_bytes=6_000)
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    return Exported(section, model, folder, theirs[0].eval(), theirs[1])


def test_logits_are_the_same(exported: Exported) -> None:
    theirs, rows = exported.theirs, exported.section["vocab_size"]
    expected = exported.model(tokens())[..., :rows]
    found = theirs(tokens()).logits
    assert found.shape == expected.shape
    assert distance(found, expected) < LOGITS_TOLERANCE
    prompt = tokens()[:1, :5]
    generated = theirs.generate(prompt, max_new_tokens=1, do_sample=False)
    assert generated[0, -1] == exported.model(prompt)[0, -1, :rows].argmax()


def test_the_folder_has_exactly_the_tensors_of_the_class(exported: Exported) -> None:
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not exported.loading[kind], kind
    assert exported.theirs.config.vocab_size == exported.section["vocab_size"]


def test_a_round_trip_keeps_every_bit(exported: Exported, tmp_path: Path) -> None:
    """``transformers`` saves other keys, other spellings and stacked experts."""
    section, rows = exported.section, exported.section["vocab_size"]
    assert (exported.folder / INDEX).exists()
    assert_same_bits(read(exported.folder, section), exported.model, rows=rows)
    exported.theirs.save_pretrained(tmp_path)
    assert_same_bits(read(tmp_path, section), exported.model, rows=rows)


def test_the_tokenizer_of_a_folder_encodes_and_decodes(exported: Exported) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported.folder)
    text = "Der Müller wiegt 12 Säcke,\n  dann schläft er."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == exported.theirs.config.eos_token_id == 2


def test_every_gradient_is_the_same(section: Section, export: Export) -> None:
    model = random_model(section)
    folder, rows = export(model, section, rows="padded"), section["padded_vocab_size"]
    assert not (folder / INDEX).exists()
    assert_same_bits(read(folder, section), model, rows=rows)
    theirs = load(folder)
    assert theirs.config.vocab_size == rows
    batch = tokens()
    inputs, targets = batch[:, :-1], batch[:, 1:]
    model.compute_loss(inputs, targets).backward()  # type: ignore[operator]  # a decoder's own method
    F.cross_entropy(theirs(inputs).logits.flatten(0, 1), targets.flatten()).backward()
    features = read_decoder(section)
    gradients = gradients_of(model)
    expected = in_memory(mapped_gradients(gradients, features, rows=rows), section)
    for constant, _ in theirs.named_buffers():
        expected.pop(constant, None)
    found = {name: value.grad for name, value in theirs.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert distance(gradient, expected[name]) < GRADIENT_TOLERANCE, name


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    gradients: dict[str, Tensor] = {}
    for name, value in model.named_parameters():
        assert value.grad is not None, name
        gradients[name] = value.grad
    return gradients | dict(model.named_buffers())


def mapped_gradients(
    gradients: dict[str, Tensor], features: DecoderSpec, *, rows: int
) -> dict[str, Tensor]:
    """Map gradients like weights, without the numbers that are added to weights."""
    family = choose_family(features)
    wide = {name: value.double() for name, value in gradients.items()}
    none = {name: torch.zeros_like(value) for name, value in wide.items()}
    moved, at_zero = (
        dict(their_tensors(tensors, family, features, rows=rows)) for tensors in (wide, none)
    )
    return {name: value - at_zero[name] for name, value in moved.items()}


def in_memory(tensors: dict[str, Tensor], section: Section) -> dict[str, Tensor]:
    """Stack experts as ``transformers`` 5 does when it loads them."""
    tensors = rename_tensors(tensors)
    single = re.compile(r"\.experts\.\d+\.")
    stacked = {name: value for name, value in tensors.items() if not single.search(name)}
    first = section.get("num_dense_layers", 1) if section.get("dense_mlp") else 0
    for layer in range(first, section["num_layers"] if len(stacked) < len(tensors) else 0):
        prefix = f"model.layers.{layer}.mlp.experts"
        experts = range(section["mlp"]["num_experts"])
        parts = {
            name: torch.stack([tensors[f"{prefix}.{e}.{name}_proj.weight"] for e in experts])
            for name in ("gate", "up", "down")
        }
        stacked[f"{prefix}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], 1)
        stacked[f"{prefix}.down_proj"] = parts["down"]
    return stacked


def test_the_precision_is_kept(export: Export) -> None:
    model = random_model(llama()).to(torch.bfloat16)
    assert next(load(export(model, llama())).parameters()).dtype == torch.bfloat16
