import ast
import hashlib
import sysconfig
from pathlib import Path

import pytest

from components.config.schema.data import Source
from components.errors import RecipeError
from data_prep.sources import (
    choose_split,
    embedded_names,
    find_inputs,
    library_docs,
    library_source,
    measure_groups,
    open_embedded,
    open_source,
)


def test_a_section_of_the_recipe_is_a_source(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo")
    opened = open_source("mine", Source(files=(f"{tmp_path}/*.txt",), embedded=None))
    assert [document.text for document in opened.iter_documents()] == ["one", "two"]
    (record,) = opened.records
    assert (record.bytes, record.sha256) == (8, hashlib.sha256(b"one\n\ntwo").hexdigest())


@pytest.mark.long
def test_an_embedded_corpus_precedes_files(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    opened = open_source("mine", Source(files=(f"{tmp_path}/a.txt",), embedded="python/docs"))
    assert [record.name for record in opened.records] == ["python/docs", f"{tmp_path}/a.txt"]
    assert list(opened.iter_documents())[-1].text == "mine"


def test_a_source_without_text_is_refused():
    with pytest.raises(RecipeError, match=r"data\.sources\.mine: has no files.*\n  .*files="):
        open_source("mine", Source(files=(), embedded=None))


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_name_that_cannot_be_a_file_name_is_refused(name):
    with pytest.raises(RecipeError, match="is not valid as a file name"):
        open_source(name, Source(files=(), embedded="python/docs"))


WHERE = "data.sources.mine.embedded"


def test_the_source_corpus_is_the_library_without_its_tests():
    groups = [document.group_text for document in library_source()]
    assert groups == sorted(groups)
    assert {"argparse.py", "json/decoder.py"} <= set(groups)
    assert not [name for name in groups if "test" in Path(name).parts or "idlelib" in name]
    argparse = Path(sysconfig.get_path("stdlib"), "argparse.py").read_text("utf-8")
    assert argparse in {document.text for document in library_source()}


@pytest.mark.long
def test_documentation_shares_the_group_of_its_module():
    documents = {document.group_text: document.text for document in library_docs()}
    module = Path(sysconfig.get_path("stdlib"), "json", "decoder.py").read_text("utf-8")
    assert str(ast.get_docstring(ast.parse(module))) in documents["json/decoder.py"]
    assert "JSONDecoder: Simple JSON" in documents["json/decoder.py"]


def test_the_help_topics_are_documents():
    topics = {d.group_text: d.text for d in library_docs() if d.group_text.startswith("topic/")}
    assert "with" in topics["topic/with"]
    assert len(topics) > 50


@pytest.mark.parametrize("name", ["python/source", "python/docs"])
def test_a_library_corpus_states_its_size(name):
    corpus = open_embedded(name, WHERE)
    assert corpus.hash_input().name == name
    sizes = [len(document.text.encode()) for document in corpus.iter_documents()]
    assert corpus.hash_input().bytes == sum(sizes)
    assert corpus.hash_input() == open_embedded(name, WHERE).hash_input()


@pytest.fixture
def eu24(tmp_path):
    (tmp_path / "eu24").mkdir()
    for name in ("mt", "ga"):
        (tmp_path / "eu24" / f"{name}.txt").write_text("Bonġu.\n\nGrazzi.", encoding="utf-8")
    return tmp_path


def test_a_text_of_a_corpora_folder_is_found_by_its_path(eu24):
    corpus = open_embedded("eu24/mt", WHERE, eu24)
    assert [document.text for document in corpus.iter_documents()] == ["Bonġu.", "Grazzi."]
    assert corpus.hash_input().name == "eu24/mt"
    message = r"mine\.embedded: .*'eu24/xx'\n  choose from python/source, python/docs, eu24/ga"
    with pytest.raises(RecipeError, match=message):
        open_embedded("eu24/xx", WHERE, eu24)


def test_a_folder_of_corpora_gives_all_of_its_texts(eu24):
    tmp_path = eu24
    assert embedded_names("eu24", tmp_path) == ["eu24/ga", "eu24/mt"]
    assert embedded_names("eu24/mt", tmp_path) == ["eu24/mt"]
    assert embedded_names("python/source", tmp_path) == ["python/source"]
    languages = find_inputs("parallel", Source(embedded="eu24"))
    assert len(languages) == 24
    assert sum(len([*text.iter_documents()]) for text in languages) == 24 * 12


def test_documentation_is_held_out_with_the_source_code_that_contains_it():
    source, docs = (
        choose_split(measure_groups(documents), 0.05)
        for documents in (library_source(), library_docs())
    )
    modules = {document.group_text for document in library_source()}
    for document in library_docs():
        if document.group_text in modules:
            assert bool(docs.held_out_text(document)) == bool(source.held_out_text(document))
