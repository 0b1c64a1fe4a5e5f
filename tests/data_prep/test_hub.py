import json
import os
import socket
import tarfile
import zipfile
from contextlib import suppress

import pytest

from components.config.schema.data import HubDataset, Source
from components.errors import RecipeError
from data_prep.sources import open_source

TEXTS = [f"document {number}" for number in range(600)]


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    """Write the library's files below ``tmp_path`` and refuse connections."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def refuse(*_: object) -> None:
        raise AssertionError("connects")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [json.dumps({"text": text, "body": text.upper(), "id": 1}) for text in TEXTS]
    (folder / "train.jsonl").write_text("\n".join(rows))
    return folder


def opened(folder, *, column="text", **changes):
    named = {"path": str(folder), "split": "train", **changes}
    return open_source("mine", Source(dataset=HubDataset(**named), column=column))


def texts(source) -> list[str]:
    return [document.text for document in source.iter_documents()]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_folder_of_data_files_is_read_row_by_row(folder, streaming):
    source = opened(folder, streaming=streaming)
    assert texts(source) == texts(source) == TEXTS
    assert texts(opened(folder, streaming=streaming, column="body"))[0] == "DOCUMENT 0"


def test_a_part_of_a_split_can_be_named(folder):
    assert texts(opened(folder, split="train[:3]")) == TEXTS[:3]


def test_the_record_changes_with_the_files_the_split_and_the_column(folder):
    records = {opened(folder).records[0].sha256, opened(folder).records[0].sha256}
    records.add(opened(folder, split="train[:3]").records[0].sha256)
    records.add(opened(folder, column="body").records[0].sha256)
    with (folder / "train.jsonl").open("a") as file:
        file.write('\n{"text": "more", "body": "", "id": 1}')
    records.add(opened(folder).records[0].sha256)
    assert len(records) == 4
    assert opened(folder).records[0].name == f"dataset:{folder}"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r"mine\.dataset: .*data cannot be read: .*split"),
        ({"column": "tekst"}, r"mine\.column: .*data has no column 'tekst'\n.*text, body"),
        ({"column": "id"}, r"mine\.dataset: .*data row 1 has no text\n  set another column"),
    ],
)
def test_missing_splits_and_columns_are_refused(folder, change, streaming, message):
    with pytest.raises(RecipeError, match=message):
        texts(opened(folder, streaming=streaming, **change))


def test_a_dataset_without_text_is_refused(folder):
    (folder / "train.jsonl").write_text('{"text": " "}\n{"text": ""}')
    with pytest.raises(RecipeError, match=r"data has no text"):
        texts(opened(folder))


@pytest.mark.parametrize("streaming", [True, False])
def test_a_damaged_file_is_refused(folder, streaming):
    with (folder / "train.jsonl").open("a") as file:
        file.write('\n{"text"')
    with pytest.raises(RecipeError, match=r"mine\.dataset: .*cannot be read: JSON parse error"):
        texts(opened(folder, streaming=streaming))


def test_code_in_a_dataset_is_never_run(tmp_path):
    code = tmp_path / "evil"
    code.mkdir()
    (code / "evil.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(RecipeError, match=r"scripts are no longer supported.*\n.*with code"):
        opened(code)


def test_the_error_without_a_network_has_a_remedy():
    message = r"missing/dataset cannot be read: .*\n  without a network, set path to .*HF_HOME"
    with pytest.raises(RecipeError, match=message):
        opened("missing/dataset")


SECRET = "a-secret"


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret.jsonl").write_text(json.dumps({"text": SECRET}))
    (place / "secret.txt").write_text(SECRET)
    return place


def described(folder, configs, name="README.md"):
    text = json.dumps({"configs": configs})
    (folder / name).write_text(f"---\n{text}\n---\n" if name == "README.md" else text)


PLACES = [
    "OUTSIDE/secret.jsonl",
    "../outside/secret.jsonl",
    "data/../../outside/*.jsonl",
    "~/secret.jsonl",
    "https://example.org/x.jsonl",
    "hf://datasets/somebody/else/x.jsonl",
    "file:///OUTSIDE/secret.jsonl",
    "zip://x.jsonl::https://example.org/x.zip",
    "x.jsonl::OUTSIDE/secret.jsonl",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_that_names_files_elsewhere_is_refused(place, folder, outside):
    place = place.replace("OUTSIDE", str(outside))
    files = [{"split": "train", "path": ["train.jsonl", place]}]
    described(folder, [{"config_name": "default", "data_files": files}])
    with pytest.raises(RecipeError, match="which is not in the folder"):
        opened(folder)


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_files_elsewhere_are_refused_in_every_form(name, folder, outside):
    place = str(outside / "secret.jsonl")
    for files in (place, [place], [{"split": "train", "path": place}]):
        described(folder, [{"config_name": "default", "data_files": files}], name)
        with pytest.raises(RecipeError, match="which is not in the folder"):
            opened(folder)
    described(folder, [{"config_name": "a", "data_files": "*.jsonl", "data_dir": place}], name)
    with pytest.raises(RecipeError, match="which is not in the folder"):
        opened(folder)


def test_a_folder_may_describe_its_own_files(folder):
    (folder / "more").mkdir()
    (folder / "more" / "a.jsonl").write_text('{"text": "more"}')
    described(folder, [{"config_name": "few", "data_files": "more/*.jsonl"}])
    assert texts(opened(folder)) == texts(opened(folder, name="few")) == ["more"]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("target", ["secret.jsonl", ".", "/"])
def test_a_link_out_of_the_folder_is_never_followed(target, streaming, folder, outside):
    (folder / "train-2.jsonl").symlink_to(outside / target)
    with pytest.raises(RecipeError, match="leads out of the folder"):
        opened(folder, streaming=streaming)


def test_links_within_and_to_the_folder_are_read(folder, tmp_path):
    (folder / "rows.jsonl").write_text((folder / "train.jsonl").read_text())
    (folder / "train.jsonl").unlink()
    (folder / "train.jsonl").symlink_to("rows.jsonl")
    (tmp_path / "linked").symlink_to(folder)
    assert texts(opened(tmp_path / "linked"))[:600] == TEXTS


def test_a_pipe_in_the_folder_is_refused(folder):
    os.mkfifo(folder / "train-2.jsonl")
    with pytest.raises(RecipeError, match="neither a file nor a folder"):
        opened(folder)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("by", ["schema", "card"])
@pytest.mark.parametrize("column", ["text", "picture"])
def test_files_in_rows_are_never_opened(by, column, streaming, folder, outside, monkeypatch):
    """By default the library opens files and addresses in a column of pictures."""
    import datasets
    import pyarrow.parquet

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("opens what a row names")

    monkeypatch.setattr(datasets.Image, "decode_example", refuse)
    monkeypatch.setattr("datasets.features.image.xopen", refuse)
    (folder / "train.jsonl").unlink()
    pictures = [
        {"bytes": None, "path": f"{outside}/secret.txt"},
        {"bytes": None, "path": "https://example.org/x.png"},
    ]
    kinds = datasets.Features({"text": datasets.Value("string"), "picture": datasets.Image()})
    schema = kinds.arrow_schema if by == "schema" else None
    columns = {"text": ["one", "two"], "picture": pictures}
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), folder / "train.parquet")
    if by == "card":
        listed = [{"name": "text", "dtype": "string"}, {"name": "picture", "dtype": "image"}]
        card = json.dumps({"dataset_info": {"features": listed}})
        (folder / "README.md").write_text(f"---\n{card}\n---\n")
    source = opened(folder, column=column, streaming=streaming)
    if column == "text":
        assert texts(source) == ["one", "two"]
    else:
        with pytest.raises(RecipeError, match="no strings in column 'picture'"):
            texts(source)


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz"])
@pytest.mark.parametrize("streaming", [True, False])
def test_an_archive_is_never_unpacked(mode, streaming, folder, tmp_path):
    file = folder / "train.jsonl"
    if mode == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("x.jsonl", '{"text": "x"}')
    else:
        row = tmp_path / "x.jsonl"
        row.write_text('{"text": "x"}')
        with tarfile.open(file, mode) as packed:
            packed.add(row, "x.jsonl")
    with pytest.raises(RecipeError, match=r"train\.jsonl, which is not a table in"):
        texts(opened(folder, streaming=streaming))
    assert not (tmp_path / "cache/downloads/extracted").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("a.png", b"x"), ("a.tar", b"x"), ("a.h5", b"x"), ("a.zip", None)]
)
def test_a_folder_without_tables_is_refused(name, content, folder):
    (folder / "train.jsonl").unlink()
    if content is None:
        with zipfile.ZipFile(folder / name, "w") as packed:
            packed.writestr("../x.jsonl", '{"text": "x"}')
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(RecipeError, match=r"not a table |No \(supported\) data files"):
        opened(folder)


CARDS = """- 1
configs: 7
configs: [7]
configs: [{}]
configs: [
configs: [{config_name: a, data_files: {a: 1}}]
configs: [{config_name: a, data_files: [[x]]}]
configs: [{config_name: a, data_files: '*.jsonl', nothing: 1}]
configs: [{config_name: a, data_files: [&a '*.jsonl', *a]}]
a: !!python/object/apply:os.system [id]
dataset_info: 7
dataset_info: {features: [{name: text, dtype: nothing}]}
dataset_info: {features: {text: {_type: os.system}}}""".splitlines()


@pytest.mark.parametrize("card", [*CARDS, "[" * 500], ids=lambda card: card[:60])
def test_an_invalid_card_is_read_or_refused_in_one_message(card, folder):
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    with suppress(RecipeError):  # other exceptions are bugs
        assert texts(opened(folder)) == TEXTS


@pytest.mark.parametrize(
    "path", ["https://example.org/x", "hf://datasets/a/b", "a/b/c", "x::y", "x.py"]
)
def test_a_path_that_is_neither_folder_nor_name_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("raise SystemExit")
    with pytest.raises(RecipeError, match="cannot be read"):
        opened(path)


def test_a_hub_dataset_with_local_files_is_refused(outside, monkeypatch):
    import datasets

    file = str(outside / "secret.jsonl")
    local = datasets.load_dataset_builder("json", data_files=file)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: local)
    with pytest.raises(RecipeError, match=r"lists .*secret\.jsonl, which is not a table in"):
        opened("somebody/rows")
