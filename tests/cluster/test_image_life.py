"""A real Slurm and an image without its commands: the host asks them, the image computes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import ROOT
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import Submit, finish, submit
from tests.life.conftest import entries

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]
__all__ = ["submit"]  # fixtures

SYSTEM = ("/proc", "/sys", "/dev", "/tmp", "/lib", "/lib64", "/usr/lib", "/etc")
# Like `apptainer exec IMAGE WORDS`, for an image that is a folder: a process sees its files and
# the bound folders of the host, without the host's programs. Started commands are recorded.
CONTAIN = """#!/bin/bash
root=$1; shift
exec unshare --mount --propagation=private bash -c '
root=$1; shift
for path in {bound}; do
  mkdir -p "$root$path" && mount --rbind "$path" "$root$path" || exit 125
done
unshare=$(command -v unshare)
echo "$*" >> "$root/../started"
PATH={python} exec "$unshare" --root="$root" --wd="$PWD" "$@"' bash "$root" "$@"
"""


def container(folder: Path) -> str:
    """Write what starts a program in an image that is a folder; none of the host's is there."""
    called = Path(sys.executable).parent.parent  # packages are found by this path
    places = {Path(sys.prefix).resolve(), Path(sys.base_prefix), ROOT, called}
    bound = [path for path in (*SYSTEM, *map(str, sorted(places))) if Path(path).exists()]
    (folder / "image").mkdir()
    text = CONTAIN.format(bound=" ".join(bound), python=f"{called}/bin")
    (folder / "contain").write_text(text)
    (folder / "contain").chmod(0o755)
    return str(folder / "contain")


def test_ranks_compute_in_an_image(slurm: LocalSlurm, submit: Submit, tmp_path: Path) -> None:
    contain = container(tmp_path)
    run = submit(
        "imaged",
        *("cluster.nodes=2", "cluster.devices_per_node=1", "parallelism.data=2"),
        *("cluster.jobs=2", "cluster.hours=0.5"),
        *("budget.total_tokens=10_240", "checkpoint.every_tokens=5_120"),
        "evaluation.every_tokens=10_240",
        f"site.image={tmp_path}/image",
        f"cluster.site.container={contain}",
        f"site.host_python={sys.executable}",
    )
    end = finish(slurm, run, 600)
    assert end.state == "finished"
    assert [job.ended for job in end.jobs] == ["finished"]
    assert entries(run, "preflight")
    assert entries(run, "step")[-1]["tokens"] == 10_240
    started = (tmp_path / "started").read_text()
    modules = set(re.findall(r"-m (\S+)", started))
    assert modules == {"components.preflight", "cluster.preflight", "components.train"}
    assert subprocess.run([contain, f"{tmp_path}/image", "scontrol"]).returncode == 127
