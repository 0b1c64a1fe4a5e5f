import json

import pytest

from components.config.schema.data import HubDataset, Source
from components.errors import RecipeError
from data_prep.sources import open_source

TEXTS = [f"document {number}" for number in range(600)]


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    """Keep what the library writes below ``tmp_path``, and let it ask nobody."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


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
    return [document.text for document in source.documents()]


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
        (
            {"column": "tekst"},
            r"mine\.column: .*data has no column 'tekst'\n.*text, body",
        ),
        ({"column": "id"}, r"mine\.dataset: .*data row 1 has no text\n  name another column"),
    ],
)
def test_what_a_dataset_does_not_have_is_refused(folder, change, streaming, message):
    with pytest.raises(RecipeError, match=message):
        texts(opened(folder, streaming=streaming, **change))


def test_a_dataset_without_text_is_refused(folder):
    (folder / "train.jsonl").write_text('{"text": " "}\n{"text": ""}')
    with pytest.raises(RecipeError, match=r"data holds no text"):
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


def test_without_a_network_a_name_says_what_to_do():
    message = r"nobody/nothing cannot be read: .*\n  without a network name a folder .*HF_HOME"
    with pytest.raises(RecipeError, match=message):
        opened("nobody/nothing")
