"""Elements of a job array, started as by the job script."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.errors import RecipeError
from data_prep.stages.runner import Say
from data_prep.task import Array, deal_tasks, main
from tests.data_prep.corpora import EXACT, clean, digest_of, write_corpus


@dataclass(frozen=True)
class Elements:
    """A queue that runs the chosen elements one by one."""

    chosen: tuple[int, ...]

    def run_tasks(self, folder: Path, tasks: Sequence[int], say: Say) -> None:
        groups = deal_tasks(tasks, 3)
        Array(groups=groups, workers=1, job="7").save_array(folder)
        for element in range(len(groups)):
            if element in self.chosen:
                main([str(folder.parent), folder.name, str(element)])


def test_all_array_elements_give_the_result_of_one_process(tmp_path):
    sources = write_corpus(tmp_path / "t")
    expected = digest_of(clean(sources, tmp_path / "one", **EXACT))
    for lost in range(3):
        some = Elements(tuple(element for element in range(3) if element != lost))
        with pytest.raises(RecipeError, match=r"\d of \d+ tasks ended without a result, the f"):
            clean(sources, tmp_path / str(lost), executor=some)
        every = Elements((0, 1, 2))
        result = clean(sources, tmp_path / str(lost), executor=every, **EXACT)
        assert digest_of(result) == expected


def test_the_error_of_an_element_is_raised_and_the_element_repeated(tmp_path, capsys):
    sources = write_corpus(tmp_path / "t")
    bad = tmp_path / "t" / "en1.jsonl"
    good = bad.read_text()
    bad.write_text('{"tekst": "x"}\n' + good)
    every = Elements((0, 1, 2))
    with pytest.raises(RecipeError, match=r"en1\.jsonl:1 line 1 has no text"):
        clean(sources, tmp_path / "s", executor=every)
    assert "en1.jsonl:1 line 1 has no text" in capsys.readouterr().err
    bad.write_text(good)
    expected = digest_of(clean(sources, tmp_path / "one"))
    assert digest_of(clean(sources, tmp_path / "s", executor=every)) == expected
