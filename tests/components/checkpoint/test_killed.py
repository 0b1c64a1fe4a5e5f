"""A kill at any moment leaves whole checkpoints; ``killed`` plays any number of rounds."""

from pathlib import Path

import pytest

from tests.components.checkpoint import killed


@pytest.mark.long
def test_what_a_kill_leaves_is_whole_or_not_there(tmp_path: Path) -> None:
    left = [found for _, found in killed.rounds(tmp_path, 3, seed=0)]
    assert all(one.is_whole for one in left), left
    assert any(one.step for one in left), "nothing was ever saved"
