"""What ``action=new`` finds out about the text: names, field, size, and tokens."""

import gzip
import json
import re
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from omegaconf import OmegaConf

from command.main import main
from command.new_recipe.material import as_pattern, find_text, split_list
from command.new_recipe.page import as_comment
from command.recipe.recipe_file import check_content
from components.config.recipe_text import inline_yaml
from data_prep.read import LocalFile
from data_prep.sources import find_inputs, open_files
from tests.command.test_new import composed, home, new, refused

Said = pytest.CaptureFixture[str]

__all__ = ["home"]  # the fixture


HOSTILE = (
    *("1e3.txt", "true.txt", "null.txt", "no.txt", "01.txt", "0x10.txt", "1_0.txt", "~.txt"),
    *("a.b.txt", "-x.txt", "\u00fcn\u00ef.txt", "\U0001f600.txt", "a'b.txt", 'a"b.txt'),
    *("{a}.txt", "[a].txt", "*.txt", "${x}.txt", "${oc.env:HOME}.txt", "a,b.txt", "a b .txt"),
    *("#a.txt", " #a.txt", "a\nb.txt", "%s.txt", "a\\b.txt", "{{ a }}.txt", "~root.txt"),
    *("&a.txt", "a: b.txt"),
)


def test_a_written_pattern_matches_the_same_files(home: Path) -> None:
    for name in HOSTILE:
        (home / name).write_text("text")
        for words in (name, f"'{name}'" if '"' in name else f'["{name}"]'):
            (pattern,) = split_list(words)
            tree = {"data": {"sources": {"a": {"files": [as_pattern(pattern)]}}}}
            page = f"# {as_comment(name)}\n{inline_yaml(tree)[1:-1]}\n"
            (home / "r.yaml").write_text(page, "utf-8")
            read = yaml.safe_load(page)
            check_content(read)
            files = OmegaConf.to_container(OmegaConf.load(home / "r.yaml"), resolve=True)
            assert files == read, name
            found = open_files(tuple(read["data"]["sources"]["a"]["files"]), "data", "text")
            assert [file.path.name for file in found] == [name]
        (home / name).unlink()


def test_files_with_hostile_names_become_sources_of_a_recipe_that_composes(home: Path) -> None:
    text = (home / "texts" / "0.txt").read_text("utf-8")
    names = [name for name in HOSTILE if '"' not in name]
    for number, name in enumerate(names):
        (home / name).write_text(f"{number} {text}", "utf-8")
    new("data=[{}]".format(",".join(f'"{name}"' for name in names)))
    recipe = composed()
    sources = [find_inputs(name, source) for name, source in recipe.data.sources.items()]
    assert [one.path.name for (one,) in sources if isinstance(one, LocalFile)] == names
    assert {"1e3", "true", "null", "no", "01", "0x10"} <= {*recipe.data.sources}


@pytest.mark.parametrize("name", ["1e3", "no"])
def test_a_name_that_yaml_reads_as_another_thing_is_quoted(name: str, home: Path) -> None:
    assert main(["action=new", f"name='{name}'", "data=texts/*.txt"]) == 0
    assert composed(f"recipes/{name}.yaml").name == name


@pytest.mark.parametrize("name", ["a\x07b.txt", "a\u2028b.txt", "a\x85b.txt", "a\u202eb.txt"])
def test_a_name_that_no_recipe_can_hold_is_refused(name: str, home: Path, capfd: Said) -> None:
    (home / name).write_text("text " * 10_000)
    err = refused(capfd, "name=a", f"data={name}")
    assert "data: 'a\\" in err
    assert "contains a character that a recipe cannot contain" in err


def write_records(file: Path, *names: str) -> None:
    lines = (home.read_text("utf-8") for home in sorted(Path("texts").iterdir()))
    file.write_text(
        "\n".join(json.dumps({**dict.fromkeys(names, text), "id": 1}) for text in lines)
    )


def test_the_text_field_is_detected_or_must_be_named(home: Path) -> None:
    write_records(home / "a.jsonl", "text", "url")
    write_records(home / "b.jsonl", "content")
    new("data=[a.jsonl,b.jsonl,texts/*.txt]")
    sources = composed().data.sources
    assert [sources[name].column for name in ("a", "b", "texts")] == ["text", "content", "text"]
    write_records(home / "c.jsonl", "text", "body")
    new("data=[a.jsonl,c.jsonl]", "column=body", "file=named.yaml")
    sources = composed("named.yaml").data.sources
    assert [sources[name].column for name in ("a", "c")] == ["text", "body"]


def test_ambiguous_text_fields_are_listed(home: Path, capfd: Said) -> None:
    write_records(home / "a.jsonl", "title", "body")
    err = refused(capfd, "name=a", "data=a.jsonl")
    assert "column: a.jsonl has text in title, body\n" in err
    assert "column=NAME" in err
    assert "no record of data= has text in 'bod'" in refused(
        capfd, "name=a", "data=texts/*.txt", "column=bod"
    )
    assert "column requires data" in refused(capfd, "name=a", "column=bod")
    write_records(home / "b.jsonl", "content")
    assert "?.jsonl has text in title, body, con" in refused(capfd, "name=a", "data=?.jsonl")


def test_empty_files_are_skipped_and_other_names_refused(home: Path, capfd: Said) -> None:
    for name in "abcde":
        (home / "texts" / f"{name}.txt").write_text(" \n")
    new("data=texts/*.txt")
    said = capfd.readouterr().err
    assert "skipped 5 inputs without text: texts/a.txt, texts/b.txt, texts/c.txt, ..." in said
    (home / "bad\udcff.txt").write_text("text " * 10_000)
    assert "is not UTF-8" in refused(capfd, "name=a", "data=bad*.txt")
    assert "is not UTF-8" in refused(capfd, "name=a", "data=bad\udcff.txt")


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".md.gz"])
def test_the_size_of_a_text_is_independent_of_its_format(suffix: str, home: Path) -> None:
    texts = [file.read_text("utf-8") for file in sorted((home / "texts").iterdir())]
    records = "\n".join(json.dumps({"text": text, "more": [1] * 500}) for text in texts)
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), home / "a.parquet")
    elif suffix == ".arrow":
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict({"text": texts}).save_to_disk(home / "a.arrow")
    elif suffix == ".jsonl.zst":
        (home / "a.jsonl.zst").write_bytes(zstandard.compress(records.encode()))
    else:
        content = records if suffix == ".jsonl.gz" else "\n".join(texts)
        (home / f"a{suffix}").write_bytes(gzip.compress(content.encode()))
    expected = sum(len(text.encode()) for text in texts)
    assert find_text(f"a{suffix}").num_bytes == pytest.approx(expected, abs=10)


def test_long_text_is_estimated(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = find_text("texts/*.txt").num_bytes
    one = (home / "long.txt").write_bytes(b"text of 20 characters\n\n" * 9_000)
    monkeypatch.setattr("command.new_recipe.material.COUNTED_BYTES", 10_000)
    monkeypatch.setattr("command.new_recipe.material.SAMPLE_BYTES", 5_000)
    assert find_text("texts/*.txt").num_bytes == pytest.approx(whole, rel=0.1)
    text = find_text("long.txt")
    assert text.num_bytes == pytest.approx(one * 21 / 23, rel=0.01)
    assert not text.is_whole
    assert sum(len(document.text) for document in text.sample) <= 5_021


def test_the_announced_epochs_equal_the_epochs_of_the_run(home: Path, capfd: Said) -> None:
    new("data=texts/*.txt")
    recipe = composed()
    page = (home / "recipes" / "mine.yaml").read_text("utf-8")
    (promised,) = re.findall(r"reads your text (\S+) times", page)
    assert main(["action=prepare", "recipe=recipes/mine.yaml", "scale=full"]) == 0
    said = capfd.readouterr().err
    (tokens,) = re.findall(r"text: ([\d,]+) training tokens", said)
    passes = recipe.budget.total_tokens / int(tokens.replace(",", ""))
    assert passes == pytest.approx(float(promised), rel=0.05)
    assert passes <= 4.1
