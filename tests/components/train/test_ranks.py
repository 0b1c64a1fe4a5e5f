"""Which rank a process is, by each launcher's names."""

import pytest
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer

from components.errors import RecipeError
from components.train.ranks import rank_variables, task_number

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
def test_every_launcher_s_rank_becomes_torchrun_s(seen: dict[str, str]) -> None:
    found = rank_variables(seen, ranks=24, per_node=12)
    assert found.pop("TORCHELASTIC_RUN_ID")
    assert found == EXPECTED
    numbered = rank_variables(seen | {"PBS_JOBID": "7.server"}, ranks=24, per_node=12)
    assert numbered["TORCHELASTIC_RUN_ID"] == "7.server"


def test_srun_s_own_pmi_and_torchrun_s_ranks_stay() -> None:
    seen = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2", "PMI_RANK": "1"}
    assert rank_variables(seen, ranks=2, per_node=2)["RANK"] == "1"
    assert rank_variables({"RANK": "1", "SLURM_PROCID": "5"}, ranks=2, per_node=2) == {}
    assert rank_variables({}, ranks=1, per_node=1) == {}
    assert task_number({"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}) == 2


def test_lightning_takes_these_names_for_torchrun_s_inside_slurm(monkeypatch):
    slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "teuken7b", "SLURM_NTASKS_PER_NODE": "1"}
    for name, value in {**slurm, **rank_variables(slurm, ranks=2, per_node=1)}.items():
        monkeypatch.setenv(name, value)
    trainer = Trainer(
        accelerator="cpu", devices=1, num_nodes=2, logger=False, enable_checkpointing=False
    )
    environment = trainer._accelerator_connector.cluster_environment
    assert isinstance(environment, TorchElasticEnvironment)


def test_a_process_that_nobody_told_its_rank_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"RANK: not set, but the recipe has 24 ranks"):
        rank_variables({}, ranks=24, per_node=12)
    with pytest.raises(RecipeError, match="RANK: no launcher sets the node's number in"):
        task_number({})
    seen = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    with pytest.raises(RecipeError, match=r"SLURM_NTASKS: 8 ranks were started, but .* has 24"):
        rank_variables(seen, ranks=24, per_node=12)
