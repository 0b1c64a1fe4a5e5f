"""One corpus in every stage: kept documents, counts, and reused results."""

import gzip
import json
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from components.config.schema.data import Source
from components.errors import RecipeError
from data_prep.stages.plan import pin_lists
from data_prep.stages.runner import Local
from tests.data_prep.corpora import (
    EXACT,
    LANGUAGES,
    ROOT,
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
    """Read the corpus without code of the preparation."""
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


def test_without_stages_every_document_is_kept_in_order(sources, root):
    cleaned = clean(sources, root)
    assert texts_of(cleaned) == as_written(sources)
    assert list(cleaned.stages) == ["clean"]


@pytest.mark.long
def test_embedded_texts_are_cleaned_like_files(root):
    one, library = Source(embedded="eu24/ga"), Source(embedded="python/docs")
    cleaned = clean({"ga": one, "docs": library}, root, shard_bytes=100_000_000)
    texts = texts_of(cleaned)
    assert texts["ga"] == paragraphs("ga")
    assert len(texts["docs"]) > 500


def test_the_first_of_exact_duplicates_is_kept(sources, root):
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


@pytest.mark.long
def test_workers_and_folder_change_no_byte(sources, root, tmp_path):
    one = clean(sources, root, **EXACT)
    two = clean(sources, tmp_path, executor=Local(workers=2), **EXACT)
    assert digest_of(one) == digest_of(two)
    for name in LANGUAGES:
        for mine, other in zip(shards_of(one, name), shards_of(two, name), strict=True):
            assert mine.read_bytes() == other.read_bytes()


def test_a_second_preparation_touches_no_file(sources, root):
    first = clean(sources, root, **EXACT)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*.*")}
    messages: list[str] = []
    assert digest_of(clean(sources, root, messages=messages, **EXACT)) == digest_of(first)
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*.*")} == before
    assert all(line.endswith(": already done") for line in messages)


def test_inputs_that_were_moved_are_not_cleaned_again(sources, root, tmp_path):
    first = clean(sources, root)
    moved = write_corpus(tmp_path / "elsewhere")
    messages: list[str] = []
    assert digest_of(clean(moved, root, messages=messages)) == digest_of(first)
    assert [line.endswith(": already done") for line in messages] == [True]


def test_only_a_task_without_output_is_repeated(sources, tmp_path):
    whole = digest_of(clean(sources, tmp_path))
    (folder,) = tmp_path.iterdir()
    (folder / "manifest.json").unlink()
    (folder / "000002.jsonl.zst").write_bytes(b"half")
    untouched = (folder / "000001.jsonl.zst").stat().st_mtime_ns
    messages: list[str] = []
    assert digest_of(clean(sources, tmp_path, messages=messages)) == whole
    assert f"{folder.name}: 1 of " in messages[0]
    assert (folder / "000001.jsonl.zst").stat().st_mtime_ns == untouched


def test_an_edited_shard_is_refused(sources, tmp_path):
    cleaned = clean(sources, tmp_path)
    shard = shards_of(cleaned, "de")[0]
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(RecipeError, match=r"was changed after its stage wrote it\n  delete"):
        clean(sources, tmp_path)
    with pytest.raises(RecipeError, match=r"000000\.jsonl\.zst was changed after it was hash"):
        clean(sources, tmp_path, **EXACT)
    shard.unlink()
    with pytest.raises(RecipeError, match="was removed after its stage wrote it"):
        clean(sources, tmp_path)


def test_an_emptied_source_is_named_with_the_reasons(sources, tmp_path):
    (tmp_path / "copy.txt").write_text("\n\n".join(paragraphs("de")[:2]), "utf-8")
    two = {"de": sources["de"], "zz": Source(files=(f"{tmp_path}/copy.txt",))}
    message = r"data\.sources\.zz: no document remains: 2 exact duplicate\n  see the examples"
    with pytest.raises(RecipeError, match=message):
        clean(two, tmp_path / "stages", **EXACT)


def test_an_embedded_corpus_keeps_the_groups_of_its_documents(tmp_path):
    cleaned = clean({"code": Source(embedded="python/source")}, tmp_path, **EXACT)
    groups = {document.group_text for document in cleaned.sources["code"].iter_documents()}
    assert {"argparse.py", "json/decoder.py"} <= groups


def test_an_unwritable_folder_is_refused(sources, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r"data\.folder: is not writable"):
        clean(sources, tmp_path / "file" / "stages")


def test_examples_show_what_was_removed_and_why(sources, root):
    clean(sources, root, **EXACT)
    (folder,) = root.glob("keep-*")
    tally = json.loads((folder / "manifest.json").read_text())["tally"]
    examples = tally["examples"]["exact duplicate"]
    assert len(examples) == 3
    assert examples[0]["text"] == paragraphs("de")[0][:200]


NEAR = {"ngram": 5, "bands": 16, "rows": 8, "threshold": 0.8, "seed": 1}
PLAIN = {"unicode_form": "NFC", "strip_line_ends": True, "remove_controls": True}
KEEP_ALL: dict[str, Any] = {
    "keep": "all",
    "minimum_score": {"default": 0.0},
    "lower_case": False,
}
KEEP_ALL |= {"except_sources": []}
EMAILS: dict[str, Any] = {
    "emails": "nobody@example.com",
    "ip_addresses": "none",
    "phone_numbers": "none",
}
EMAILS |= {"ibans": "none", "except_sources": []}
EVERYTHING = EXACT | {"normalise": PLAIN, "language": KEEP_ALL, "near_duplicates": NEAR}
EVERYTHING |= {"personal_data": EMAILS}


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, Source]:
    """Repeat each paragraph of de with decomposed umlauts or with an additional word."""
    texts = paragraphs("de")
    same = [unicodedata.normalize("NFD", text) for text in texts[::2]]
    alike = [f"{text} Ende" for text in texts[1::2]]
    (tmp_path / "de.txt").write_text("\n\n".join([*texts, *same, *alike]), "utf-8")
    lines = [json.dumps({"text": f"{text} Fragen an a.b@c.org?"}) for text in paragraphs("en")]
    (tmp_path / "en.jsonl").write_text("\n".join(lines))
    return {
        "de": Source(files=(f"{tmp_path}/de.txt",), language="de"),
        "en": Source(files=(f"{tmp_path}/en.jsonl",), language="en"),
    }


def test_every_stage_at_once_accounts_for_every_document(planted, tmp_path):
    cleaned = clean(planted, tmp_path / "s", **EVERYTHING)
    texts = paragraphs("de")
    kept = cleaned.stages["keep"].sources
    assert texts_of(cleaned)["de"] == texts
    half = len(texts) // 2
    assert kept["de"].removed == {"exact duplicate": half, "near duplicate": half}
    assert kept["en"].replaced == {"emails": len(paragraphs("en"))}
    assert all("nobody@example.com" in text for text in texts_of(cleaned)["en"])
    assert cleaned.stages["clean"].sources["de"].languages == {"de": 2 * len(texts)}


def test_a_setting_rebuilds_only_its_stage_and_later_ones(planted, tmp_path):
    def rebuilt(**changes: Any) -> list[str]:
        messages: list[str] = []
        clean(planted, tmp_path / "s", messages=messages, **{**EVERYTHING, **changes})
        return [line.partition("-")[0] for line in messages if "to do" in line]

    every = ["clean", "signatures", "duplicates", "keep"]
    assert rebuilt() == every
    assert rebuilt() == []
    assert rebuilt(personal_data={**EMAILS, "emails": "x@example.com"}) == ["keep"]
    # Different pairs are found, but the same documents removed: later stages are reused.
    assert rebuilt(near_duplicates={**NEAR, "threshold": 0.79}) == ["duplicates"]
    assert rebuilt(near_duplicates={**NEAR, "bands": 8, "rows": 16}) == ["duplicates"]
    assert rebuilt(near_duplicates={**NEAR, "seed": 2})[:2] == ["signatures", "duplicates"]
    assert rebuilt(near_duplicates="none")[0] == "duplicates"
    # The texts are the same, so later stages are reused.
    assert rebuilt(language={**KEEP_ALL, "lower_case": True})[0] == "clean"
    assert rebuilt(executor="ray", workers=7, most_jobs=3, wait=False) == []
    assert rebuilt(normalise="none") == every


def test_metadata_of_records_reaches_the_filters(tmp_path):
    warned = {"text": "warned", "metadata": {"quality_warnings": ["tiny"]}}
    records = (warned, {"text": "fine", "metadata": {}})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    filters = yaml.safe_load((ROOT / "conf/preparation/opengptx.yaml").read_text())["filters"]
    annotations = {**dict.fromkeys(filters, "none"), "except_sources": []}
    source = {"web": Source(files=(f"{tmp_path}/a.jsonl",))}
    chosen = annotations | {"annotations": filters["annotations"]}
    cleaned = clean(source, tmp_path / "s", filters=chosen)
    assert texts_of(cleaned) == {"web": ["fine"]}
    assert cleaned.stages["clean"].sources["web"].removed == {"annotations": 1}


def test_compressed_text_and_parquet_are_cleaned_as_plain_text(tmp_path):
    texts = paragraphs("en")
    records = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / "a.jsonl").write_bytes(records)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(records))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "c.parquet")
    source = {"en": Source(files=(f"{tmp_path}/*.*",))}
    assert texts_of(clean(source, tmp_path / "s")) == {"en": texts * 3}


def test_a_word_list_is_identified_by_content_and_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("words.json").write_text('{"en": ["the"]}')
    steps = {"filters": {"text_ratios": {"stop_words": "words.json", "flagged_words": "none"}}}
    first = pin_lists(steps)
    assert first["steps"]["filters"]["text_ratios"]["stop_words"] == f"{tmp_path}/words.json"
    assert steps["filters"]["text_ratios"]["stop_words"] == "words.json"
    Path("words.json").write_text('{"en": ["a"]}')
    assert pin_lists(steps)["lists"].keys() == first["lists"].keys() == {"stop_words"}
    assert pin_lists(steps) != first
