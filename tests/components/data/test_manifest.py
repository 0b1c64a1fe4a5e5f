import dataclasses
import json

import pytest

from components.data.manifest import Manifest
from components.errors import RecipeError


def test_what_was_written_is_read(prepared):
    folder, manifest = prepared
    manifest.save_manifest(folder)
    assert Manifest.from_folder(folder) == manifest


def test_an_untouched_folder_passes(prepared):
    folder, manifest = prepared
    manifest.verify_files(folder, contents=True)
    assert len(list(manifest.list_files())) == 5


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


def test_a_folder_without_a_manifest_is_not_prepared_data(tmp_path):
    with pytest.raises(RecipeError, match=r"manifest\.json: does not exist.*\n  delete"):
        Manifest.from_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format_version": 2}',
        "\ufeff",
        '{"format_version": 2, "key": 2}',
        "[" * 100_000,
    ],
)
def test_something_else_in_its_place_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"manifest\.json: is not a manifest"):
        Manifest.from_folder(tmp_path)


def test_another_version_is_refused(prepared):
    folder, manifest = prepared
    dataclasses.replace(manifest, format_version=7).save_manifest(folder)
    with pytest.raises(RecipeError, match="has format 7, but this version reads format 2"):
        Manifest.from_folder(folder)


def test_an_unknown_field_is_refused(prepared):
    folder, manifest = prepared
    manifest.save_manifest(folder)
    path = folder / "manifest.json"
    tree = json.loads(path.read_text())
    tree["sources"]["a"]["train"][0]["compression"] = "zstd"
    path.write_text(json.dumps(tree))
    with pytest.raises(RecipeError, match=r"is not a manifest.*compression"):
        Manifest.from_folder(folder)
