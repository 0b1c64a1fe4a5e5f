"""Every action that starts processes, in a folder where somebody has planted modules."""

import subprocess
from pathlib import Path

import pytest

from tests.components.test_child_process import NAMES, plant
from tests.life.conftest import TINY, command, environment

pytestmark = pytest.mark.long

ACTIONS = (
    (0, (*TINY, "cluster.ranks=2", "run=run")),
    (0, ("action=evaluate", "run=run", "checkpoints=all", "ranks=2")),
    (
        0,
        (
            *TINY,
            "action=prepare",
            "data.folder=clean",
            "preparation=plain",
            "data.preparation.workers=2",
            "data.preparation.shard_bytes=65_536",
        ),
    ),
    (0, (*TINY, "action=parity", "parallelism.data=2", "cluster.ranks=2")),
    (0, ("recipe=bloom560m", "cluster=jean_zay_v100", "action=dryrun")),
    # No network.
    (2, ("recipe=teuken7b", "cluster=juwels", "action=prepare", "stage=true", "file=stage")),
)


@pytest.mark.timeout(900)
def test_no_action_runs_a_module_of_the_working_folder(home: Path) -> None:
    mark = plant(home, *NAMES)
    index = environment() | {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    for status, words in ACTIONS:
        done = subprocess.run(
            command(*words), cwd=home, env=index, capture_output=True, text=True, check=False
        )
        assert not mark.exists(), (words, mark.read_text())
        assert done.returncode == status, (words, done.stderr[-3000:])
