"""GPUs that a node has lost, on a real Slurm: each node is named, the job runs on the other.

Each node has a driver of its own (`driver.py`): what is pretended, and how deep, stands there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.driver import LIBRARY, ON_THE_PROCESSOR, RUNTIME, build_driver
from tests.cluster.planting import plant
from tests.cluster.slurm import JUWELS, LocalSlurm, local_slurm
from tests.cluster.test_preflight_life import ON_NODE, SHORT, verdict
from tests.cluster.test_slurm_life import Submit, finish, home, submit
from tests.life.conftest import entries

__all__ = ["home", "submit"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

MASK = "CUDA_VISIBLE_DEVICES"  # as JUWELS's profile sets it


@pytest.fixture(scope="module")
def slurm() -> Iterator[LocalSlurm]:
    """Four nodes: three to be bad, one to train on."""
    with local_slurm(4, JUWELS) as cluster:
        yield cluster


def test_nodes_with_a_gpu_fewer_none_or_one_that_does_not_answer_are_left_out(
    slurm: LocalSlurm, submit: Submit, tmp_path: Path
) -> None:
    fewer, none, lost, good = slurm.nodes
    figures = {
        fewer: {"devices": 1},
        none: {"devices": -1},
        lost: {"devices": 2, "lost": 1},
        good: {"devices": 2},
    }
    for node, those in figures.items():
        library = build_driver(tmp_path / node, **those)
        slurm.on_node(node, "cp", str(library), str(slurm.local / LIBRARY))
    seen = {"LD_LIBRARY_PATH": f"{slurm.local}", MASK: "'0,1'"}
    run = submit(
        "gpus",
        *(word for word in SHORT if not word.startswith(("cluster.nodes", "cluster.devices"))),
        *("cluster.nodes=1", "cluster.spare_nodes=3", "cluster.devices_per_node=2"),
        "cluster.device=cuda",
        *(
            f"cluster.site.environment.{name}={{value: {value}, reason: planted}}"
            for name, value in seen.items()
        ),
        plant(
            *(tmp_path / "venv", ON_NODE, "*", "sitecustomize.py", RUNTIME),
            before_ranks=ON_THE_PROCESSOR,
        ),
    )
    end = finish(slurm, run)
    assert end.state == "finished"
    (job,) = end.jobs
    assert (job.bad_nodes, job.nodes) == ((fewer, none, lost), slurm.nodes)
    event = verdict(run)
    assert event["evidence"] == {
        "nodes": 4,
        "needed": 1,
        "excluded": {
            fewer: ["devices"],
            none: ["devices", "product"],
            lost: ["memory"],
        },
    }
    cause = str(event["cause"])
    assert f"{fewer}: devices: 2 cuda devices, one a rank, but torch sees 1 here" in cause
    assert f"{none}: devices: cuda, but torch " in cause
    assert f"{lost}: memory: cuda:1: CUDA error: unknown error, expected an answer" in cause
    assert (run / "preflight" / "nodes").read_text().split() == [good]
    assert [entry["step"] for entry in entries(run, "step")] == list(range(1, 21))
