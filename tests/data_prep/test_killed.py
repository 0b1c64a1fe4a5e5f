from pathlib import Path

import pytest

from tests.data_prep.corpora import MANY_TASKS, clean, digest_of, write_corpus
from tests.data_prep.killed import rounds


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_whoever_is_killed_the_result_is_the_same_and_nobody_works_on(tmp_path):
    sources = write_corpus(tmp_path / "texts")
    expected = digest_of(clean(sources, tmp_path / "whole", **MANY_TASKS))
    for victim, work, digest in rounds(tmp_path / "texts", tmp_path, 2, seed=3):
        assert digest == expected, f"{victim} killed in {work}"
