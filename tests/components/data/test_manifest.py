"""Manifests are read as written; a hostile manifest is refused or read correctly."""

import copy
import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.data.files import record_file
from components.data.manifest import Manifest
from components.data.packing import open_rows, pack_source
from components.data.token_file import OpenFiles, ShardedTokens
from components.errors import RecipeError
from tests.components.data.conftest import VOCAB_SIZE


def test_written_tokens_are_read_back(prepared):
    folder, manifest = prepared
    manifest.save_manifest(folder)
    assert Manifest.from_folder(folder) == manifest
    manifest.verify_files(folder, contents=True)
    assert len(list(manifest.list_files())) == 5
    dataclasses.replace(manifest, format_version=7).save_manifest(folder)
    with pytest.raises(RecipeError, match="has format 7, but this version reads format 2"):
        Manifest.from_folder(folder)


def saved_tree(folder: Path, manifest: Manifest) -> Any:
    """Save the manifest and return the tree of its file."""
    manifest.save_manifest(folder)
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize("name", ["tokenizer.model", "a.train.tokens", "b.held_out.tokens"])
def test_each_kind_of_damage_is_named(prepared, name):
    folder, manifest = prepared
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[::-1])
    manifest.verify_files(folder, contents=False)
    with pytest.raises(RecipeError, match=rf"{name}: was changed.*\n  delete its folder"):
        manifest.verify_files(folder, contents=True)
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(RecipeError, match=rf"{name}: is truncated"):
        manifest.verify_files(folder, contents=False)
    (folder / name).unlink()
    with pytest.raises(RecipeError, match=rf"{name}: is missing"):
        manifest.verify_files(folder, contents=False)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format_version": 2, "key": 2}', "\ufeff", "[" * 100_000]
)
def test_an_invalid_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"manifest\.json: is not a manifest"):
        Manifest.from_folder(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(RecipeError, match=r"manifest\.json: does not exist.*\n  delete"):
        Manifest.from_folder(tmp_path)


def test_an_unknown_field_is_refused(prepared):
    folder, manifest = prepared
    tree = saved_tree(folder, manifest)
    tree["sources"]["a"]["train"][0]["compression"] = "zstd"
    (folder / "manifest.json").write_text(json.dumps(tree))
    with pytest.raises(RecipeError, match=r"is not a manifest.*compression"):
        Manifest.from_folder(folder)


HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 1 << 62, 1 << 63, 10**40, 0.5, math.nan, math.inf, "1e400", "x", "", None),
    *([], {}, True, "/etc/passwd", "../x", "..", ".", "a/../../x", "\0", "\ud800", "x" * 5000),
    *("uint32", "int32", "uint8", ["a"], {"a": 1}),
)


def places(tree: Any) -> Iterator[list[Any]]:
    """Yield the path of each value in the tree, branches included."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield [key]
        if isinstance(value, dict | list):
            yield from ([key, *path] for path in places(value))


def read_everything(folder: Path, names: tuple[str, ...] = ("a", "b")) -> list[int]:
    manifest = Manifest.from_folder(folder)
    manifest.check_recipe(folder, names=names, vocab_size=VOCAB_SIZE, tokens=())
    manifest.verify_files(folder, contents=True)
    files = OpenFiles(folder=folder, vocab_size=VOCAB_SIZE)
    read: list[int] = []
    for name in names:
        source = manifest.sources[name]
        for records in (source.train, source.held_out):
            tokens = ShardedTokens(records=records, files=files)
            read += tokens.read_tokens(0, len(tokens)).tolist()
    return read


def test_a_manifest_with_a_hostile_value_is_refused_or_read_correctly(prepared) -> None:
    folder, manifest = prepared
    manifest.save_manifest(folder)
    file = folder / "manifest.json"
    valid = json.loads(file.read_text())
    expected, accepted = read_everything(folder), 0
    errors: list[RecipeError] = []
    for *path, last in places(valid):
        for value in HOSTILE:
            tree = copy.deepcopy(valid)
            branch = tree
            for key in path:
                branch = branch[key]
            branch[last] = value
            file.write_text(json.dumps(tree).replace('"1e400"', "1e400"))
            try:
                read = read_everything(folder)
            except RecipeError as error:
                errors.append(error)
            else:  # fewer tokens, or none, are still tokens of these files
                assert set(read) <= set(expected), (path, last, value)
                accepted += 1
    assert len(errors) > 1000
    assert all(str(folder) in error.path for error in errors)
    assert accepted > 10


def test_an_id_outside_the_vocabulary_is_refused_with_its_file(prepared) -> None:
    folder, manifest = prepared
    file = folder / "b.train.tokens"
    tokens = np.fromfile(file, "<u2")
    tokens[7] = VOCAB_SIZE
    tokens.tofile(file)
    record = record_file(file)
    tree = saved_tree(folder, manifest)
    tree["sources"]["b"]["train"][0]["sha256"] = record.sha256
    (folder / "manifest.json").write_text(json.dumps(tree))
    with pytest.raises(RecipeError, match=r"b\.train\.tokens: has token id 1,000, but the"):
        read_everything(folder)


@pytest.mark.parametrize("name", ["a.train.tokens", "tokenizer.model"])
def test_a_link_that_leads_out_of_the_folder_is_refused(prepared, tmp_path_factory, name):
    folder, manifest = prepared
    outside = tmp_path_factory.mktemp("outside") / "file"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    with pytest.raises(RecipeError, match="is a link that leads out of its folder"):
        manifest.verify_files(folder, contents=False)


def test_a_link_inside_the_folder_is_read(prepared) -> None:
    folder, manifest = prepared
    (folder / "a.train.tokens").rename(folder / "elsewhere")
    (folder / "a.train.tokens").symlink_to("elsewhere")
    manifest.verify_files(folder, contents=True)


@pytest.mark.parametrize(
    ("tokens", "root", "is_read"),
    [
        (("in/place/m",), None, True),
        (("in/place/m.bin",), None, True),
        (("in/*",), None, True),
        (("place/m",), "*", True),
        (("m",), None, False),
        ((), None, False),
    ],
)
def test_only_named_files_outside_are_read(prepared, monkeypatch, tokens, root, is_read):
    folder, manifest = prepared
    monkeypatch.chdir(folder)
    tree = saved_tree(folder, manifest)
    place = folder / "in" / "place" / "m.bin"
    tree["sources"]["a"]["train"][0]["name"] = str(place)
    (folder / "manifest.json").write_text(json.dumps(tree))
    read = Manifest.from_folder(folder)
    options = {"names": ("a",), "vocab_size": VOCAB_SIZE, "tokens": tokens, "root": root}
    if is_read:
        read.check_recipe(folder, **options)
    else:
        with pytest.raises(RecipeError, match="which is not in the recipe"):
            read.check_recipe(folder, **options)


def test_another_vocabulary_and_a_missing_source_are_refused(prepared) -> None:
    folder, manifest = prepared
    with pytest.raises(RecipeError, match=r"has 1,000 ids, but tokenizer\.vocab_size is 7"):
        manifest.check_recipe(folder, names=("a",), vocab_size=7, tokens=())
    with pytest.raises(RecipeError, match="lacks the source c"):
        manifest.check_recipe(folder, names=("a", "c"), vocab_size=VOCAB_SIZE, tokens=())


@pytest.mark.parametrize(
    ("suffix", "numbers"),
    [
        *(("pieces", pair) for pair in ([-5, 10], [10**15, 10], [0, 10**15], [0, 0], [0, 50])),
        *(("rows", row) for row in ([10**15], [-1], [0, 0])),
    ],
)
def test_damaged_rows_are_refused_when_one_is_read(prepared, suffix, numbers) -> None:
    folder, manifest = prepared
    rows = pack_source(folder, "a", manifest.sources["a"], length=20, eod_id=999)
    file = folder / "packed" / f"a-20.{suffix}"
    content = np.fromfile(file, "<i8")
    content[: len(numbers)] = numbers
    content.tofile(file)
    rows = open_rows(folder, "a", manifest.sources["a"], length=20)
    tokens = ShardedTokens(records=manifest.sources["a"].train, files=OpenFiles(folder=folder))
    with pytest.raises(RecipeError, match=r"a-20\.pieces: row 0 is damaged"):
        rows.read_row(0, tokens, 20, 999)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\0" * 8, b"\0" * 15])
@pytest.mark.parametrize("suffix", ["pieces", "rows"])
def test_truncated_files_of_rows_are_refused(prepared, suffix, content) -> None:
    folder, manifest = prepared
    pack_source(folder, "a", manifest.sources["a"], length=20, eod_id=999)
    (folder / "packed" / f"a-20.{suffix}").write_bytes(content)
    with pytest.raises(RecipeError, match=re.escape("a-20.rows")):
        open_rows(folder, "a", manifest.sources["a"], length=20)
