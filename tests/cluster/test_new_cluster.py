"""A cluster that nobody here knows is one YAML file: it shows, plans and renders."""

import shutil
from pathlib import Path

import pytest

from cluster.job import render_job_script
from command.actions.show import as_json
from command.files import trusted_paths
from components.planner.plan import plan_recipe
from tests.cluster.directives import read_directives
from tests.cluster.jobs import ROOT, job_of, recipe_of

PROFILE = """
name: summit_like
scheduler: pbs
device: cuda
devices_per_node: 6
nodes: auto
ranks: auto
hardware:
  device: NVIDIA V100-16GB
  memory_bytes: 17_179_869_184
  context_bytes: null
  usable_bytes: null
  peak_teraflops: {float16: 125.0, bfloat16: 15.7}
  gemm_teraflops: {bfloat16: 14.0}
  memory_gigabytes_per_second: 900.0
  compute_units: 80
  inside: &link
    peak_gigabytes_per_second: 50.0
    all_reduce_gigabytes_per_second: null
    all_gather_gigabytes_per_second: null
    latency_seconds: null
  across: {<<: *link, by_nodes: []}
  power_watts: 300.0
accounting: none
queues: [{name: batch, fewest_nodes: 1, most_nodes: 500, longest_hours: 6.0}]
site:
  queue_option: -q
  queue: null
  account: required
  account_suffix: ""
  node_resources: ncpus=42:ngpus=6
  directives: []
  modules: [load python]
  python: null
  provides: []
  setup: []
  container: null
  environment: {NCCL_DEBUG: {value: WARN, reason: quiet}}
  binding: {cores_per_rank: 7, cores: depth, ports: left to NCCL}
  launch: [--depth=7]
  host_suffix: -ib
  node_folder: /local
  spare_seconds: 300
  internet: false
  proxy: null
  file_systems: {}
"""


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for folder in ("conf", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    monkeypatch.setattr(trusted_paths, "CLONE", tmp_path)
    (tmp_path / "conf" / "cluster" / "summit_like.yaml").write_text(PROFILE, "utf-8")
    return "cluster=summit_like"


def test_one_file_adds_a_cluster_of_six_devices_a_node(added: str) -> None:
    words = ("recipe=mula1b", added, "parallelism.data=192")
    recipe = recipe_of(*words)
    shown = as_json(recipe)["recipe"]
    assert isinstance(shown, dict)
    assert (shown["cluster"]["nodes"], shown["cluster"]["devices_per_node"]) == (32, 6)
    assert plan_recipe(recipe).cost_estimate is not None
    script = render_job_script(job_of(*words))
    found = read_directives(script)
    assert found["-l"] == ["select=32:ncpus=42:ngpus=6", "walltime=06:00:00"]
    assert found["-q"] == ["batch"]
    ranks = 'mpiexec -n $((nodes * 6)) --ppn 6 --hostfile "$run/preflight/nodes" --depth=7 '
    assert ranks in script
    assert '"$PBS_NODEFILE")-ib  # the name for other nodes' in script
