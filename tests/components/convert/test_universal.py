"""A universal checkpoint of DeepSpeed gives the model that ``transformers`` computes."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.convert.reading import read_folder
from components.convert.universal import UniversalReader
from components.errors import RecipeError
from components.train.local_checks import check_builds
from tests.components.convert.base_section import Section, part
from tests.components.convert.conftest import PIECES, ROOT, bloom, gpt2, llama, random_model
from tests.components.convert.universal_cases import SECTIONS
from tests.components.convert.universal_reference import reference

pytestmark = pytest.mark.long

# Both sides sum the same float32 numbers in a different order.
TOLERANCE = 1e-5
EMBEDDING = "tied_modules.embed.word_embeddings.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and convert with DeepSpeed in a separate process, because it changes globals."""
    folder = tmp_path_factory.mktemp("universal")
    subprocess.run(
        [sys.executable, "-m", "tests.components.convert.universal_cases", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written / "bloom/universal", tmp_path / "copy")


def read(folder: Path, section: Section) -> nn.Module:
    model = random_model(section, seed=2)
    read_folder(folder, model, section=section, tokenizer_vocab_size=PIECES)
    return model


def edit(folder: Path, name: str, change: Callable[[Any], Any], **options: Any) -> None:
    file = folder / "zero" / name / "fp32.pt"
    torch.save(change(torch.load(file, weights_only=True)), file, **options)


def rename(folder: Path, old: str, new: str) -> None:
    (folder / "zero" / old).rename(folder / "zero" / new)


@pytest.mark.parametrize("name", SECTIONS)
def test_logits_equal_transformers(name: str, written: Path) -> None:
    section = SECTIONS[name]()
    trained = load_file(written / name / "trained.safetensors")
    theirs = reference(name, section, trained)
    tokens = torch.randint(0, PIECES, (2, 24), generator=torch.manual_seed(5))
    with torch.no_grad():
        expected = theirs(tokens).logits
        found = read(written / name / "universal", section)(tokens)
    rows = expected.shape[-1]
    assert float((found[..., :rows] - expected).norm() / expected.norm()) < TOLERANCE
    assert expected.std() > 0.1
    assert not found[..., rows:].any()


@pytest.mark.parametrize("name", SECTIONS)
def test_weights_equal_the_hugging_face_folder_bit_by_bit(name, written, tmp_path):
    section = SECTIONS[name]() | ({"vocab_size": PIECES} if name == "bloom" else {})
    trained = load_file(written / name / "trained.safetensors")
    reference(name, section, trained).save_pretrained(tmp_path)
    found = read(written / name / "universal", section)
    expected = dict(read(tmp_path, section).named_parameters())
    assert all(torch.equal(value, expected[key]) for key, value in found.named_parameters())


def test_a_recipe_starts_from_a_universal_checkpoint(written: Path, folder) -> None:
    words = [
        *("recipe=bloom560m", "scale=parity", "model.dim=42", "model.num_layers=2"),
        *("model.attention.num_heads=7", "model.attention.num_kv_heads=7"),
        *("model.attention.head_dim=6", "model.mlp.ffn_dim=168", "tokenizer.vocab_size=300"),
        *("model.vocab_size=303", "model.padded_vocab_size=320", "parallelism.tensor=1"),
        *("parallelism.pipeline=1", "parallelism.data=1"),
    ]
    begin = f"model.init_from={written / 'bloom/universal'}"
    check_builds(compose_recipe(read_point([*words, begin])))
    rename(folder, "6.bias", "6.bais")
    spoilt = f"model.init_from={folder}"
    with pytest.raises(RecipeError, match=r"missing: 6\.bias; unknown: 6\.bais"):
        check_builds(compose_recipe(read_point([*words, spoilt])))


def test_layer_numbers_are_read_from_the_names(folder: Path) -> None:
    """Other parts may be between numbered ones; 10 comes after 9."""
    expected = dict(read(folder, bloom()).named_parameters())
    for weight in sorted((folder / "zero").iterdir(), reverse=True):
        place, _, rest = weight.name.partition(".")
        if place.isdigit():
            number = int(place) + (6 if place in "34" else 40)
            weight.rename(weight.with_name(f"{number}.{rest}"))
    found = read(folder, bloom())
    assert all(torch.equal(value, expected[key]) for key, value in found.named_parameters())


@pytest.mark.parametrize("rows", [300, 303, 320])
def test_rows_may_be_cut_to_the_pieces_or_padded(rows: int, folder: Path) -> None:
    table = torch.randn(rows, 42, generator=torch.manual_seed(1))
    edit(folder, EMBEDDING, lambda held: held | {"param": table})
    found = read(folder, bloom()).get_parameter("embedding.weight")
    assert torch.equal(found[:rows], table)
    assert not found[rows:].any()


def test_only_weights_are_opened(folder: Path) -> None:
    for file in folder.rglob("*.pt"):
        if file.name != "fp32.pt":
            file.write_text("no tensors")
    read(folder, bloom())


def test_a_file_in_the_older_format_of_torch_is_read(folder: Path) -> None:
    expected = UniversalReader(folder).read_tensor("3.mlp.dense_h_to_4h.weight").clone()
    options = {"_use_new_zipfile_serialization": False}
    edit(folder, "3.mlp.dense_h_to_4h.weight", lambda held: held, **options)
    found = read(folder, bloom()).get_parameter("layers.0.mlp.up.weight")
    assert torch.equal(found, expected)


class Foreign:
    """A class that a pickle could run."""


def write_bytes(raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "zero/6.bias/fp32.pt").write_bytes(raw)


BIAS = "6.bias"
CANNOT_BE_READ = r"6\.bias/fp32\.pt: cannot be read"
LONG = "4.mlp.dense_4h_to_h"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: edit(folder, EMBEDDING, lambda _: {"param": torch.zeros(310, 42)}),
            "310 vocabulary rows, the recipe has 300 or",
        ),
        (
            lambda folder: rename(folder, f"{LONG}.bias", f"{LONG}.slope"),
            r"missing: 4\.mlp\.dense_4h_to_h\.bias; unknown: 4\.mlp\.dense_4h_to_h\.slope",
        ),
        (
            lambda folder: edit(folder, BIAS, lambda held: held | {"more": Foreign()}),
            r"6\.bias/fp32\.pt: cannot be read: it is damaged",
        ),
        (  # as ZeRO 3 writes it
            lambda folder: edit(folder, BIAS, lambda held: held["param"].flatten()),
            r"has no tensor under 'param'",
        ),
        *((write_bytes(raw), CANNOT_BE_READ) for raw in (b"", b"PK\x03\x04", b"no tensor")),
    ],
)
def test_a_damaged_folder_is_refused(spoil, message, folder: Path) -> None:
    spoil(folder)
    with pytest.raises(RecipeError, match=message):
        read(folder, bloom())


def test_differences_from_the_recipe_are_named(written: Path, folder: Path) -> None:
    """Names show whether embeddings are tied and positions learned."""
    with pytest.raises(RecipeError, match=r"model\.init_from: .* 2 blocks, the recipe has 3"):
        read(written / "bloom/universal", bloom() | {"num_layers": 3})
    other = {"vocab_size": 303, "positions": gpt2()["positions"], "embedding_norm": None}
    with pytest.raises(RecipeError, match=r"unknown: .*word_embeddings\.norm\.bias"):
        read(written / "bloom/universal", bloom() | other)
    with pytest.raises(RecipeError, match=r"unknown: 5\.lm_head\.weight"):
        read(written / "gpt2_with_exact_gelu/universal", gpt2())
    with pytest.raises(RecipeError, match=r"missing: 5\.lm_head\.weight"):
        read(written / "gpt2/universal", gpt2() | {"tied_embeddings": False})
    with pytest.raises(RecipeError, match=r"differs in model\.positions, model\.norm, .*mlp"):
        read(folder, llama())
    mup = {"parametrization": part("parametrization.MuP", base_dim=1)}
    scaled = bloom() | {"embedding_scale": "sqrt_dim"} | mup
    # Names and shapes do not depend on factors.
    scaled["attention"] |= {"scale_dim": 9, "output_gate": True, "sinks": True}
    lacking = r"in model\.embedding_scale, .*parametrization, .*\.scale_dim, .*_gate, .*\.sinks"
    with pytest.raises(RecipeError, match=lacking):
        read(folder, scaled)


def test_checkpoints_of_other_models_are_refused(folder: Path) -> None:
    shutil.rmtree(folder / "zero")
    (folder / "zero").mkdir()
    with pytest.raises(RecipeError, match=r"without blocks .*it has no tensors"):
        read(folder, bloom())
    weight = folder / "zero/transformer.h.0.input_layernorm.weight"
    weight.mkdir()
    torch.save({"param": torch.ones(42)}, weight / "fp32.pt")
    with pytest.raises(RecipeError, match=r"it has transformer\.h\.0\.input_layernorm"):
        read(folder, bloom())


@pytest.mark.parametrize(
    "pickled",
    [
        *(b"\x80\x02h\x05.", b"\x80\x02.", b"\x80\x02K\1Q.", b"\x80\x02}q\0]q\1K\1s."),
        *(b"\x80\x02X\x02\0\0\0\xff\xff.", b"\x80\x02ccollections\nOrderedDict\n(K\1tR."),
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x03\0\0\0foo\x86R.",
        b"\x80\x02ctorch\nSize\nX\x01\0\0\0a\x85R.",
        b"\x80\x02cos\nsystem\n.",
    ],
)
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_that_breaks_its_reader_is_refused(pickled, is_zip, tmp_path):
    file = tmp_path / "zero/a/fp32.pt"
    file.parent.mkdir(parents=True)
    torch.save({"param": torch.ones(2)}, file, _use_new_zipfile_serialization=is_zip)
    if is_zip:
        with ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, pickled if name.endswith("data.pkl") else content)
    else:
        parts: list[object] = [0x1950A86A20F9469CFC6C, 1001, {}]  # as torch.serialization
        file.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + pickled)
    with pytest.raises(RecipeError, match=r"cannot be read: it is damaged") as caught:
        UniversalReader(tmp_path).read_tensor("a")
    assert "weights_only" not in str(
        caught.value
    )  # torch would suggest to load it without the check


@pytest.mark.parametrize(
    "tensor",
    [
        *(torch.ones(2, 2, device="meta"), torch.eye(2).to_sparse(), torch.eye(2).int()),
        *(torch.eye(2).bool(), torch.eye(2).to(torch.complex64)),
    ],
    ids=str,
)
def test_a_tensor_without_plain_numbers_is_refused(tensor: Tensor, tmp_path: Path) -> None:
    (tmp_path / "zero/a").mkdir(parents=True)
    torch.save({"param": tensor}, tmp_path / "zero/a/fp32.pt")
    with pytest.raises(RecipeError, match=r"fp32\.pt: is torch\."):
        UniversalReader(tmp_path).read_shape("a")
