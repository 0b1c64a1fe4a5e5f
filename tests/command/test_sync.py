"""``action=report sync=true``: which tracker gets a run, and what is refused before."""

import os
from pathlib import Path

import pytest

from command.actions.report import sync
from command.actions.report.sync import tracking_of
from command.arguments import read_point
from command.main import main
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.writer_lock import lock_folder
from components.tracking import run_export
from tests.components.tracking.runs import START, STEPS, write_run

Said = pytest.CaptureFixture[str]

WANDB = "tracking=wandb"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", [*START, *STEPS])


@pytest.fixture
def recipe(run: Path) -> Recipe:
    return read_recipe(run / "recipe.json")


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo, too, what the action sets for the libraries."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def asked(recipe: Recipe, *words: str) -> dict[str, object]:
    return tracking_of(recipe, read_point(words)).model_dump()


def test_the_words_of_the_command_come_before_the_recipe(recipe: Recipe) -> None:
    chosen = asked(recipe, WANDB, "tracking.wandb.project=cakes", "tracking.wandb.tags=[a]")
    assert chosen == {
        "wandb": {"project": "cakes", "entity": None, "tags": ("a",)},
        "mlflow": "none",
    }
    mixed = asked(recipe, "tracking=both", "tracking.wandb=none")
    assert mixed == {"wandb": "none", "mlflow": {"experiment": "kochbuch"}}
    own = recipe.model_copy(update={"tracking": tracking_of(recipe, read_point([WANDB]))})
    assert asked(own)["wandb"] == {"project": "kochbuch", "entity": None, "tags": ()}
    url = "https://me:secret@mlflow.example.org/a?b=c,d"
    assert read_point(["action=report", "sync=true", f"to={url}"]).to == url


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "tracking: the recipe of this run has no tracker\n  add tracking=wandb"),
        (["tracking.wandb.project=x"], "tracking.wandb.project: the recipe has no tracking.w"),
        ([WANDB, "tracking.wandb.projet=x"], "tracking.wandb.projet: unknown key\n  did"),
        ([WANDB, "tracking.wandb.project=a/b"], "tracking.wandb.project: string should match"),
        ([WANDB, "tracking.wandb.tags=['']"], "tracking.wandb.tags.0: string should have"),
        (["tracking.comet=none"], "tracking.comet: unknown key"),
        (["tracking=mlflow"], "to: the address of the MLflow server is not set"),
        ([WANDB, "to=http://here:1"], "to: is for MLflow, but tracking has no MLflow"),
        (["budget.seed=1"], "budget.seed: sync=true reads the recipe from the run folder"),
        (["tracking=comet"], "tracking: unknown tracking: 'comet'"),
        (["run=nowhere"], "run: nowhere is not a run folder"),
    ],
)
def test_unsent_run_has_reason(run: Path, words: list[str], said: str, capsys: Said) -> None:
    own = [] if words == ["run=nowhere"] else [f"run={run}"]
    assert main(["action=report", "sync=true", *own, *words]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_library_is_missing(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(run_export, "find_spec", lambda name: None)
    assert main(["action=report", "sync=true", f"run={run}", WANDB]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tracking.wandb: wandb is not installed\n")
    assert "requirements/tracking.lock" in said
    assert not (run / "wandb").exists()


def test_run_is_sent_once(run: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    monkeypatch.setattr(sync, "WAIT_SECONDS", 0.0)

    def refused(_: object) -> RecipeError:
        return RecipeError("run", "is held")

    name = sync.SYNC_LOCK
    with lock_folder(run, seconds=0, occupied=refused, say=print, name=name):
        assert main(["action=report", "sync=true", f"run={run}", WANDB]) == 2
    assert f" is sending {run}" in capfd.readouterr().err
