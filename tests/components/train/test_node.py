"""How a node's agent finds the others, and what becomes of it when their first node dies."""

from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from command.arguments import read_point
from command.compose import compose_recipe
from components.config.schema.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import create_run_folder
from components.train import node
from components.train.node import node_config, run_node
from components.train.ranks import task_number

SEEN = {
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "77",
    "SLURMD_NODENAME": "jwb0003",
    "MASTER_ADDR": "jwb0001i",
    "MASTER_PORT": "20077",
}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    words = (
        "cluster.nodes=1",
        "scale=mini",
        "parallelism.microbatch_sequences=1",
        "watchdog.restarts=3",
        "cluster.spare_nodes=1",
    )
    return compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels", *words]))


def test_an_agent_waits_for_the_recipes_nodes_where_the_first_one_is(
    recipe: Recipe, tmp_path: Path
) -> None:
    config = node_config(recipe, tmp_path, SEEN)
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 1, 4)
    assert (config.rdzv_endpoint, config.local_addr) == ("jwb0001i:20077", "jwb0003i")
    assert (config.max_restarts, config.run_id) == (3, "77")
    assert config.rdzv_configs["is_host"] is False
    first = node_config(recipe, tmp_path, {**SEEN, "SLURM_PROCID": "0"})
    assert first.rdzv_configs["is_host"] is True


def test_a_node_that_nobody_numbered_is_refused() -> None:
    assert task_number(SEEN) == 2
    with pytest.raises(RecipeError, match="RANK: no launcher says which node of the job"):
        task_number({})


def test_a_node_whose_first_node_dies_ends_with_a_word(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lose(*given: object) -> int:
        raise RendezvousConnectionError("the connection has failed")

    create_run_folder(recipe, tmp_path / "run")
    monkeypatch.setattr(node, "start", lose)
    assert run_node(tmp_path / "run", SEEN) == 1
    said = capsys.readouterr().err
    assert said.startswith("the job's first node, where all others meet, is gone: ")
