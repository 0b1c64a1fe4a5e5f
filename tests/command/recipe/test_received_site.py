"""Jobs for a run of somebody else run what a profile here says, not what its recipe says."""

from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.evaluate.queue import evaluate_in_jobs
from command.main import main
from command.received_site import check_received_site
from components.checkpoint.metadata import MARKER
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder, create_run_folder
from components.run.ownership import seal_of
from tests.cluster.jobs import recipe_of

TOUCH = "touch ran"


def forged(recipe: Recipe, key: str) -> Recipe:
    """Put a command where it would reach a job script or the start of its tasks."""
    tree: dict[str, Any] = recipe.model_dump(mode="json")
    site = tree["cluster"]["site"]
    match key:
        case "setup":
            site["setup"] = [{"run": TOUCH, "reason": "x"}]
        case "environment":
            site["environment"]["LD_PRELOAD"] = {"value": "/tmp/x.so", "reason": "x"}
        case "launch" | "modules" | "directives" | "rank_wrapper":
            site[key] = [f"--task-prolog={TOUCH}"]
        case "queues":
            tree["cluster"]["queues"][0]["options"] = ["--mail-user=x"]
        case "name":
            tree["cluster"]["name"] = "elsewhere"
    return check_recipe(tree)


def received(recipe: Recipe, folder: Path) -> RunFolder:
    run = create_run_folder(recipe, folder / "run")
    seal_of(run.recipe).unlink(missing_ok=True)
    (run.checkpoints / "tokens-000000000000001").mkdir(parents=True)
    (run.checkpoints / "tokens-000000000000001" / MARKER).touch()
    return run


KEYS = ["setup", "environment", "launch", "modules", "directives", "rank_wrapper", "queues"]


@pytest.mark.parametrize("key", [*KEYS, "name"])
def test_commands_of_a_received_recipe_reach_no_script(key: str, tmp_path: Path) -> None:
    run = received(forged(recipe_of("recipe=teuken7b", "cluster=juwels"), key), tmp_path)
    point = read_point(["action=evaluate", "executor=array", f"run={run.path}"])
    with pytest.raises(RecipeError, match=r"cluster\.site: differs from the profile"):
        evaluate_in_jobs(point)
    assert not (run.path / "evaluation").exists()


def test_tasks_in_an_allocation_are_not_started_as_a_received_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = received(forged(recipe_of("recipe=teuken7b", "cluster=juwels"), "launch"), tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["action=preflight", f"run={run.path}"]) == 2
    assert "cluster.site: differs from the profile" in capfd.readouterr().err


def test_a_received_run_of_a_profile_as_it_is_here_and_an_own_run_may_have_jobs(
    tmp_path: Path,
) -> None:
    for name in ("juwels", "hopper_2025"):
        recipe = recipe_of("recipe=teuken7b", f"cluster={name}", "cluster.hours=2")
        check_received_site(received(recipe, tmp_path / name), recipe)
    own = forged(recipe_of("recipe=teuken7b", "cluster=juwels"), "setup")
    check_received_site(create_run_folder(own, tmp_path / "own"), own)
