import hashlib

import pytest

from components.config.schema.data import Source
from components.errors import RecipeError
from data_prep.sources import open_source


def test_a_section_of_the_recipe_is_a_source(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo")
    opened = open_source("mine", Source(files=(f"{tmp_path}/*.txt",), embedded=None))
    assert [document.text for document in opened.iter_documents()] == ["one", "two"]
    (record,) = opened.records
    assert (record.bytes, record.sha256) == (8, hashlib.sha256(b"one\n\ntwo").hexdigest())


@pytest.mark.long
def test_an_embedded_corpus_comes_before_the_files(tmp_path):
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
