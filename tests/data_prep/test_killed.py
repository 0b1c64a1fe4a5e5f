from pathlib import Path

import pytest

from data_prep.tokenise import LocalTokenise
from tests.data_prep.corpora import write_corpus
from tests.data_prep.killed import play
from tests.data_prep.prepare_corpus import prepared


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(("victim", "work"), [("worker", "clean"), ("command", "tokens")])
def test_after_a_kill_the_result_is_the_same_and_no_worker_remains(tmp_path, victim, work):
    """``make corpus`` has more victims, at random moments of every stage."""
    sources = write_corpus(tmp_path / "texts")
    expected = prepared(sources, tmp_path / "whole", how=LocalTokenise())
    assert play(tmp_path / "texts", tmp_path / "killed", victim, work, 3) == expected
