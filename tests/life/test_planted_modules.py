"""Every action that starts processes, in a folder where somebody has planted modules."""

import subprocess

import pytest

from tests.components.test_child_process import NAMES, plant
from tests.life.conftest import act, command, environment, tiny

FEW = tiny("budget.total_tokens=1_024", "checkpoint.every_tokens=1_024")
PREPARE = (
    *("action=prepare", "data.folder=clean", "preparation=plain"),
    *("data.preparation.workers=2", "data.preparation.shard_bytes=65_536"),
)
COMMANDS = ((*FEW, "cluster.ranks=2", "run=run"), (*FEW, *PREPARE))
ACTIONS = (  # of these only the processes that they start are others than the commands'
    (0, ("action=evaluate", "run=run", "checkpoints=all", "ranks=2")),
    (0, (*FEW, "action=parity", "parallelism.data=2", "cluster.ranks=2")),
    (0, ("recipe=bloom560m", "cluster=jean_zay_v100", "action=dryrun")),
    # No network.
    (2, ("recipe=teuken7b", "cluster=juwels", "action=prepare", "stage=true", "file=stage")),
)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_action_imports_a_module_of_the_working_folder(home, monkeypatch):
    mark = plant(home, *NAMES)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for words in COMMANDS:
        done = subprocess.run(
            command(*words), cwd=home, env=environment(), capture_output=True, text=True
        )
        assert not mark.exists(), (words, mark.read_text())
        assert done.returncode == 0, (words, done.stderr[-3000:])
    for status, words in ACTIONS:
        assert act(home, *words) == status, words
        assert not mark.exists(), (words, mark.read_text())
