"""Which rank a process is, by each launcher's names; its caches and its allocator."""

import os
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer

from components.errors import RecipeError
from components.train.ranks import (
    allocator_variables,
    cache_variables,
    make_cache_folders,
    rank_variables,
    task_number,
)

EXPECTED = {"RANK": "13", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
EXPECTED |= {"WORLD_SIZE": "24", "LOCAL_WORLD_SIZE": "12"}


@pytest.mark.parametrize(
    "seen",
    [
        {"SLURM_PROCID": "13", "SLURM_LOCALID": "1", "SLURM_NTASKS": "24"},
        {"PALS_RANKID": "13", "PALS_LOCAL_RANKID": "1"},
        {"OMPI_COMM_WORLD_RANK": "13", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"PMI_RANK": "13", "MPI_LOCALRANKID": "1", "PMI_SIZE": "24"},
        # mpiexec inside a SLURM job: the batch script's own task says 0 of 1
        {**dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), "0"), "SLURM_NTASKS": "1"}
        | {"PMI_RANK": "13", "MPI_LOCALRANKID": "1"},
    ],
    ids=["srun", "PALS", "OpenMPI", "Hydra", "Hydra in SLURM"],
)
def test_ranks_of_every_launcher_become_variables_of_torchrun(seen: dict[str, str]) -> None:
    found = rank_variables(seen, ranks=24, per_node=12)
    assert found.pop("TORCHELASTIC_RUN_ID")
    assert found == EXPECTED
    numbered = rank_variables(seen | {"PBS_JOBID": "7.server"}, ranks=24, per_node=12)
    assert numbered["TORCHELASTIC_RUN_ID"] == "7.server"


def test_pmi_of_srun_and_ranks_of_torchrun_are_unchanged() -> None:
    seen = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "PMI_RANK": "1"}
    assert rank_variables(seen, ranks=2, per_node=2)["RANK"] == "1"
    assert rank_variables({"RANK": "1", "SLURM_PROCID": "5"}, ranks=2, per_node=2) == {}
    assert rank_variables({}, ranks=1, per_node=1) == {}
    assert task_number({"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}) == 2


def test_lightning_detects_torchrun_inside_slurm(monkeypatch):
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "teuken7b", "SLURM_NTASKS_PER_NODE": "1"}
    for name, value in {**slurm, **rank_variables(slurm, ranks=2, per_node=1)}.items():
        monkeypatch.setenv(name, value)
    trainer = Trainer(
        accelerator="cpu", devices=1, num_nodes=2, logger=False, enable_checkpointing=False
    )
    environment = trainer._accelerator_connector.cluster_environment
    assert isinstance(environment, TorchElasticEnvironment)


def test_a_process_without_a_rank_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"RANK: not set, but the recipe has 24 ranks"):
        rank_variables({}, ranks=24, per_node=12)
    with pytest.raises(RecipeError, match="RANK: no launcher sets the node's number in"):
        task_number({})
    seen = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    with pytest.raises(RecipeError, match=r"SLURM_NTASKS: 8 ranks were started, but .* has 24"):
        rank_variables(seen, ranks=24, per_node=12)


def test_only_named_cache_folders_are_created(tmp_path: Path) -> None:
    named = {name: str(tmp_path / "cache" / name) for name in cache_variables("xpu")}
    make_cache_folders(named | {"OTHER_CACHE": str(tmp_path / "other")})
    make_cache_folders(named)  # by the node's other ranks
    assert {file.name for file in (tmp_path / "cache").iterdir()} == set(named)
    assert not (tmp_path / "other").exists()


def test_each_device_kind_has_its_caches() -> None:
    assert "CUDA_CACHE_PATH" in cache_variables("cuda")
    assert {"NEO_CACHE_DIR", "SYCL_CACHE_DIR"} <= set(cache_variables("xpu"))
    assert set(cache_variables("cpu")) == set(cache_variables("cuda")) - {"CUDA_CACHE_PATH"}


def test_cuda_segments_are_expandable_unless_the_user_sets_the_allocator() -> None:
    grows = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator_variables("cuda", {}) == grows
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        assert allocator_variables("cuda", {name: "max_split_size_mb:512"}) == {}
    assert allocator_variables("cpu", {}) == allocator_variables("xpu", {}) == {}


def test_an_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen = {"TRITON_CACHE_DIR": str(tmp_path / "file" / "triton")}
    message = (
        r"TRITON_CACHE_DIR: cannot create \S+/triton: Not a directory\n  set another folder"
    )
    with pytest.raises(RecipeError, match=message):
        make_cache_folders(seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_another_user_s_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12_345, -1)
    with pytest.raises(RecipeError, match=r"TRITON_CACHE_DIR: \S+ belongs to another user"):
        make_cache_folders({"TRITON_CACHE_DIR": str(tmp_path)})
