"""One corpus through every pass: what stays, what is counted, what is built again."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.spec.data import Source
from data_prep.stages.executors import Local
from tests.data_prep.corpora import (
    EXACT,
    LANGUAGES,
    clean,
    digest_of,
    paragraphs,
    shards_of,
    texts_of,
    write_corpus,
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


def as_written(sources: dict[str, Source]) -> dict[str, list[str]]:
    """Read the corpus by other means than the preparation's."""
    (de,), (fr,) = sources["de"].files, sources["fr"].files
    folder = Path(de).parent
    lines = "".join(file.read_text("utf-8") for file in sorted(folder.glob("*.jsonl")))
    return {
        "de": Path(de).read_text("utf-8").split("\n\n"),
        "en": [json.loads(line)["text"] for line in lines.splitlines()],
        "fr": Path(fr).read_text("utf-8").split("\n\n"),
    }


def without_repeats(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    seen: set[str] = set()
    kept: dict[str, list[str]] = {}
    for name in sorted(texts):
        kept[name] = []
        for text in texts[name]:
            if text not in seen:
                kept[name].append(text)
            seen.add(text)
    return kept


def test_with_every_stage_off_each_document_is_repacked_in_its_order(sources, root):
    cleaned = clean(sources, root)
    assert texts_of(cleaned) == as_written(sources)
    assert list(cleaned.stages) == ["clean"]


def test_of_exact_duplicates_the_first_stays_in_the_order_of_the_sources(sources, root):
    cleaned = clean(sources, root, **EXACT)
    expected = without_repeats(as_written(sources))
    assert texts_of(cleaned) == expected
    assert [*cleaned.stages] == ["clean", "duplicates", "keep"]
    for name in LANGUAGES:
        counts = cleaned.stages["keep"].sources[name]
        gone = len(as_written(sources)[name]) - len(expected[name])
        assert gone > 0
        assert counts.removed == {"exact duplicate": gone}
        assert counts.documents_in == counts.documents_out + gone


def test_neither_the_workers_nor_the_place_change_a_byte(sources, root, tmp_path):
    one = clean(sources, root, **EXACT)
    two = clean(sources, tmp_path, executor=Local(workers=2, leave_failures=False), **EXACT)
    assert digest_of(one) == digest_of(two)
    for name in LANGUAGES:
        for mine, other in zip(shards_of(one, name), shards_of(two, name), strict=True):
            assert mine.read_bytes() == other.read_bytes()


def test_a_second_preparation_touches_no_file(sources, root):
    first = clean(sources, root, **EXACT)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*.*")}
    said: list[str] = []
    assert digest_of(clean(sources, root, said=said, **EXACT)) == digest_of(first)
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*.*")} == before
    assert all(line.endswith(": done before") for line in said)


def test_inputs_that_were_moved_are_not_cleaned_again(sources, root, tmp_path):
    first = clean(sources, root)
    moved = write_corpus(tmp_path / "elsewhere")
    said: list[str] = []
    assert digest_of(clean(moved, root, said=said)) == digest_of(first)
    assert [line.endswith(": done before") for line in said] == [True]


def test_a_task_whose_output_is_gone_is_done_again_and_no_other(sources, tmp_path):
    whole = digest_of(clean(sources, tmp_path))
    (folder,) = tmp_path.iterdir()
    (folder / "manifest.json").unlink()
    (folder / "000002.jsonl.zst").write_bytes(b"half")
    untouched = (folder / "000001.jsonl.zst").stat().st_mtime_ns
    said: list[str] = []
    assert digest_of(clean(sources, tmp_path, said=said)) == whole
    assert f"{folder.name}: 1 of " in said[0]
    assert (folder / "000001.jsonl.zst").stat().st_mtime_ns == untouched


def test_an_edited_shard_is_refused(sources, tmp_path):
    cleaned = clean(sources, tmp_path)
    shard = shards_of(cleaned, "de")[0]
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(RecipeError, match=r"was changed since its stage wrote it\n  delete"):
        clean(sources, tmp_path)
    with pytest.raises(RecipeError, match=r"000000\.jsonl\.zst has changed since it was hash"):
        clean(sources, tmp_path, **EXACT)
    shard.unlink()
    with pytest.raises(RecipeError, match="is missing, but its stage wrote it"):
        clean(sources, tmp_path)


def test_a_source_of_which_nothing_is_left_is_named_with_the_reasons(sources, tmp_path):
    (tmp_path / "copy.txt").write_text("\n\n".join(paragraphs("de")[:2]), "utf-8")
    two = {"de": sources["de"], "zz": Source(files=(f"{tmp_path}/copy.txt",))}
    message = r"data\.sources\.zz: nothing is left of it: 2 exact duplicate\n  see the examples"
    with pytest.raises(RecipeError, match=message):
        clean(two, tmp_path / "stages", **EXACT)


def test_an_embedded_corpus_keeps_the_groups_of_its_documents(tmp_path):
    cleaned = clean({"code": Source(embedded="python/source")}, tmp_path, **EXACT)
    groups = {document.group for document in cleaned.sources["code"].documents()}
    assert {"argparse.py", "json/decoder.py"} <= groups


def test_a_place_that_cannot_be_written_to_is_refused(sources, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r"data\.folder: cannot write there"):
        clean(sources, tmp_path / "file" / "stages")


def test_examples_show_what_was_removed_and_why(sources, root):
    clean(sources, root, **EXACT)
    (folder,) = root.glob("keep-*")
    tally = json.loads((folder / "manifest.json").read_text())["tally"]
    examples = tally["examples"]["exact duplicate"]
    assert len(examples) == 3
    assert examples[0]["text"] == paragraphs("de")[0][:200]
