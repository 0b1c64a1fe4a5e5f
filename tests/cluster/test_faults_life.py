"""Three nodes with a fault each on a real Slurm: all are named, the job runs on the others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.planting import SLOW, plant
from tests.cluster.slurm import JUWELS, LocalSlurm, local_slurm
from tests.cluster.test_preflight_life import ON_NODE, SHORT, verdict
from tests.cluster.test_slurm_life import Submit, finish, home, submit
from tests.life.conftest import entries

__all__ = ["home", "submit"]  # fixtures
CORES = os.sched_getaffinity(0)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(len(CORES) < 2, reason="of one core none can be taken away"),
]

# A file system of the node's own, and full: its daemon has mounts that no other process sees.
FULL = ("unshare", "--mount", "--propagation=private", "sh", "-c")
FILL = 'mount -t tmpfs -o size=4m small "$0"; head -c 4M /dev/zero > "$0/left over"; exec "$@"'


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    """Five nodes: three to be bad, two to train on."""
    with local_slurm(5, JUWELS) as cluster:
        yield cluster


def test_a_node_without_a_core_one_with_a_full_disk_and_a_slow_one_are_left_out(
    slurm: LocalSlurm, submit: Submit, tmp_path: Path
) -> None:
    fewer, full, slow, *good = slurm.nodes
    (temporary := tmp_path / "temporary").mkdir()
    slurm.start_again(fewer, "taskset", "--cpu-list", str(min(CORES)))
    slurm.start_again(full, *FULL, FILL, str(temporary))
    run = submit(
        "faults",
        *SHORT,
        "cluster.spare_nodes=3",
        f"cluster.site.environment.TMPDIR={{value: {temporary}, reason: full on one node}}",
        # Nodes of one host may be 2 or 3 times slower than one another; the one that is made
        # slow was 41 to 74 times slower, for half a minute.
        *("cluster.preflight.product_fraction=0.1", "cluster.preflight.answer_seconds=300.0"),
        plant(tmp_path / "venv", ON_NODE, slow, "sitecustomize.py", SLOW),
    )
    end = finish(slurm, run)
    assert end.state == "finished"
    (job,) = end.jobs
    assert job.bad_nodes == (fewer, full, slow)
    event = verdict(run)
    assert event["evidence"] == {
        "nodes": 5,
        "needed": 2,
        "excluded": {fewer: ["cores"], full: ["temporary folder"], slow: ["product"]},
    }
    cause = str(event["cause"])
    assert f"{fewer}: cores: 1, expected {len(CORES)}, the nodes' median" in cause
    assert f"{full}: temporary folder: {temporary}: No space left on device" in cause
    assert f"{slow}: product: " in cause
    assert (run / "preflight" / "nodes").read_text().split() == good
    assert [entry["step"] for entry in entries(run, "step")] == list(range(1, 21))
    assert list(temporary.iterdir()) == []  # nothing of the node's own file system is here
