"""Ranks have all cores of a node, and each its own device.

This host has no AMD card: a program in the place of `rocm-smi` reports four cards, and a
patched torch sees the devices of the mask.
"""

import os
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from cluster.job import JobSettings, render_job_script
from components.distributed.devices import check_devices
from components.energy.counters import EnergyReading, Meter
from components.errors import RecipeError
from components.train.callbacks.energy_monitor import device_source
from components.train.ranks import rank_variables
from tests.cluster.jobs import job_of, recipe_of, script_of
from tests.cluster.programs import Patch
from tests.components.energy.smi import write_smi

# Cores of a node that a job may use, by each site's own pages (the sources of its profile).
CORES = {
    "alps": 288,
    "frontier": 56,
    "jean_zay": 64,
    "jean_zay_h100": 96,
    "jean_zay_v100": 40,
    "jupiter": 288,
    "juwels": 48,
    "leonardo": 32,
    "lumi": 56,
    "marenostrum5": 80,
    "smng_p2": 112,
}
WHOLE_NODES = ("a3_mega", "hopper", "hopper_2025")  # cores are not published
WITHOUT_SLURM = ("aurora", "h200", "local")
PROFILES = sorted(file.stem for file in Path("conf/cluster").glob("*.yaml"))


@cache
def script_on(name: str, *words: str) -> str:
    told = ("scale=mini", "cluster.nodes=2", "site.account=me", "cluster.hours=1", *words)
    return script_of("recipe=teuken7b", f"cluster={name}", *told)


def test_every_profile_is_in_one_of_these_lists() -> None:
    assert sorted([*CORES, *WHOLE_NODES, *WITHOUT_SLURM]) == PROFILES


@pytest.mark.parametrize("name", CORES)
def test_job_reserves_all_cores_and_srun_deals_them(name: str) -> None:
    script = script_on(name)
    directives = dict(re.findall(r"^#SBATCH --(\S+)=(\d+)$", script, re.MULTILINE))
    assert int(directives["cpus-per-task"]) * int(directives["ntasks-per-node"]) == CORES[name]
    assert 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"' in script


@pytest.mark.parametrize("name", WHOLE_NODES)
def test_nodes_are_whole_where_cores_are_not_published(name: str) -> None:
    script = script_on(name)
    assert "#SBATCH --exclusive\n" in script
    assert re.search(r"^  srun .*--cpu-bind=none .*-%N\.log", script, re.MULTILINE)


def test_on_aurora_the_launcher_binds_each_rank_to_cores_of_its_own() -> None:
    listed = re.search(r"--cpu-bind list:(\S+)", script_of("recipe=mula1b", "cluster=aurora"))
    assert listed is not None
    dealt = listed[1].split(":")
    assert len(dealt) == len(set(dealt)) == 12


def test_profile_that_asks_slurm_for_no_cores_is_noted() -> None:
    words = ("recipe=teuken7b", "cluster=juwels", "site.account=me", "scale=mini")
    bare = "cluster.site.binding.cores_per_rank=null"
    (note,) = (one for one in job_of(*words, bare).notes if "cores_per_rank" in one)
    assert "gives each rank one core" in note
    for more in ("directives=[--exclusive]", "launch=['--cpus-per-task=4']"):
        notes = job_of(*words, bare, f"cluster.site.{more}").notes
        assert not any("cores_per_rank" in one for one in notes)


def test_slurm_expands_nothing_of_a_runs_path() -> None:
    script = script_on("juwels", "run=/p/50%j%%/run", "cluster.jobs=2")
    assert "#SBATCH --output=/p/50%%j%%%%/run/jobs/%A_%a.log" in script
    assert "\nrun=/p/50%j%%/run\n" in script
    outputs = re.findall(r'--output="(\S+)/ranks/', script)
    assert outputs == ["${run//%/%%}", "${run//%/%%}"]
    plain = script_on("juwels", "run=/p/run", "cluster.jobs=2")
    assert re.findall(r'--output="(\S+)/ranks/', plain) == ["$run", "$run"]


def test_pbs_would_take_a_part_of_a_path_for_a_host() -> None:
    with pytest.raises(RecipeError, match=r"run: '/p/a:b': PBS reads the text before a colon"):
        job_of("recipe=mula1b", "cluster=aurora", "run=/p/a:b")


def test_the_page_lists_every_infiniband_value_that_does_not_fit_its_field() -> None:
    text = Path("docs/cluster_profiles.md").read_text().partition("## InfiniBand timeouts")[2]
    found = 0
    for name in CORES:
        script = script_on(name)
        for key, bits in (("TIMEOUT", 5), ("RETRY_CNT", 3)):
            for value in map(int, re.findall(rf"^export NCCL_IB_{key}=(\d+)", script, re.M)):
                if value >= 2**bits:
                    found += 1
                    line = rf"^\| `{name}` \| `NCCL_IB_{key}={value}` \| {value % 2**bits}\b"
                    assert re.search(line, text, re.M), line
    assert found == 6


LUMI = ("recipe=teuken7b", "cluster=lumi")
IMAGE = "site.image=/scratch/project_1/kochbuch.sif"
# `srun` starts the tasks of one node and passes over its own options.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for rank in {{0..7}}; do SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=8 "$@"; done
"""
# The container has the host's variables, and starts the image's Python.
SINGULARITY = """#!/bin/bash
[ "$1 $2 $3" = "exec /scratch/project_1/kochbuch.sif python" ] || exit 9
env --null > {folder}/rank-$SLURM_PROCID
echo "$*" > {folder}/words
"""
RANKS = re.compile(r"^  srun .*?components\.train \"\$run\"", re.S | re.M)


def launched(job: JobSettings, folder: Path) -> list[dict[str, str]]:
    """Run what the script starts its ranks by; return the variables of each rank."""
    for name, text in (("srun", SRUN), ("singularity", SINGULARITY)):
        (folder / name).write_text(text.format(folder=folder), "utf-8")
        (folder / name).chmod(0o755)
    (command,) = RANKS.findall(render_job_script(replace(job, run=str(folder))))
    script = f"run={folder}; nodes=1\n{command}"
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=path, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    files = [folder / f"rank-{rank}" for rank in range(8)]
    return [
        dict(one.split("=", 1) for one in file.read_text().split("\0") if one) for file in files
    ]


@pytest.fixture
def amd(monkeypatch: Patch) -> None:
    """Make torch a build for AMD's GPUs that sees the devices of the mask, or all eight."""

    def count() -> int:
        return len(os.environ.get("ROCR_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(","))

    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    monkeypatch.setattr(torch.cuda, "device_count", count)
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("amd")
def test_rank_sees_its_device_and_cards_count_once(tmp_path: Path, monkeypatch: Patch) -> None:
    cluster = recipe_of(*LUMI).cluster
    hardware = cluster.hardware
    assert not isinstance(hardware, str)
    ranks = launched(job_of(*LUMI, IMAGE), tmp_path)
    assert [one["ROCR_VISIBLE_DEVICES"] for one in ranks] == [str(rank) for rank in range(8)]
    words = (tmp_path / "words").read_text()
    assert words.endswith(f"python -m components.train {tmp_path}\n")
    write_smi(tmp_path, [1_000.0, 0.0, 2_000.0, 0.0, 3_000.0, 0.0, 4_000.0, 0.0])
    meters = []
    for own in ranks:
        monkeypatch.setenv("PATH", own["PATH"])
        monkeypatch.setenv("ROCR_VISIBLE_DEVICES", own["ROCR_VISIBLE_DEVICES"])
        check_devices(cluster)
        place = rank_variables(own, ranks=8, per_node=8)
        source = device_source(
            torch.device("cuda", 0),
            rank=int(place["LOCAL_RANK"]),
            ranks=cluster.devices_per_node,
            per_card=hardware.devices_per_card,
            sysfs=tmp_path / "sys",
        )
        assert source.text == "rocm-smi of the cards"
        meters.append(Meter(counters=source.counters, units=source.units, now=0.0))
    assert (tmp_path / "asked").read_text().count("\n") == 2  # by the node's first rank alone
    # 500 W a card, which the two dies of each share, for ten seconds.
    write_smi(tmp_path, [6_000.0, 0.0, 7_000.0, 0.0, 8_000.0, 0.0, 9_000.0, 0.0])
    readings = [meter.measure_energy(10.0) for meter in meters]
    node = sum(readings, EnergyReading(joules=0.0, counted_seconds=0.0, passed_seconds=0.0))
    assert node.joules == pytest.approx(4 * 500.0 * 10)
    assert (node.passed_seconds, node.is_whole) == (80.0, True)
    assert node.mean_watts == pytest.approx(hardware.device_watts)


@pytest.mark.usefixtures("amd")
def test_process_sees_all_devices_of_a_node_or_the_one_of_its_mask(monkeypatch: Patch) -> None:
    cluster = recipe_of(*LUMI).cluster
    check_devices(cluster)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")  # by Slurm
    check_devices(cluster)
    for mask, seen, message in (
        ("0,1,2,3,4,5,6", 7, r"8 rocm devices, one a rank, but torch sees 7 here"),
        ("3", 8, r"ROCR_VISIBLE_DEVICES: 3 is to show one device, but torch sees 8 here"),
        ("3", 0, r"cluster\.device: rocm, but torch .* sees no such device here\n  report"),
    ):
        monkeypatch.setenv("ROCR_VISIBLE_DEVICES", mask)
        monkeypatch.setattr(torch.cuda, "device_count", Mock(return_value=seen))
        with pytest.raises(RecipeError, match=message):
            check_devices(cluster)


@pytest.mark.parametrize("cluster", ["lumi", "frontier"])
def test_ranks_have_the_cores_next_to_their_device(cluster: str) -> None:
    settings = job_of("recipe=teuken7b", f"cluster={cluster}")
    binding = settings.site.binding
    assert binding.cores is not None
    masks = [int(mask, 16) for mask in binding.cores.removeprefix("mask_cpu:").split(",")]
    assert len(masks) == settings.cluster.devices_per_node
    cores = [[core for core in range(64) if mask >> core & 1] for mask in masks]
    assert all(len(each) == binding.cores_per_rank for each in cores)
    # The user guides' NUMA domains: each device hangs on eight cores, the first the system's.
    first = [48, 56, 16, 24, 0, 8, 32, 40]
    assert cores == [list(range(core + 1, core + 8)) for core in first]
