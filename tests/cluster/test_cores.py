"""Every profile gives its ranks all cores of a node, and output goes where a path says."""

import re
from functools import cache
from pathlib import Path

import pytest

from components.errors import RecipeError
from tests.cluster.jobs import job_of, script_of

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
