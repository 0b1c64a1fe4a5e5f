"""A run without any network, killed and gone on with, then sent: what trackers were told."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.staging.test_install import HAS_NAMESPACES, LOOPBACK_UP, OFFLINE
from tests.components.tracking.fake_wandb import wandb_server
from tests.components.tracking.runs import points_of
from tests.life.conftest import TINY, command, entries, environment

pytestmark = [
    pytest.mark.long,  # two starts of the program and of both libraries
    pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here"),
    pytest.mark.skipif(  # the packages are optional
        not (find_spec("wandb") and find_spec("mlflow")),
        reason="the trackers are not installed: requirements/tracking.lock",
    ),
    pytest.mark.filterwarnings(  # MLflow's own use of SQLAlchemy
        "ignore:The ``noload`` loader strategy is deprecated"
    ),
]


def train_offline(home: Path, *words: str, status: int) -> None:
    """Train where there is only the loopback interface."""
    program = [*OFFLINE, "bash", "-c", 'python3 -c "$1" && exec "${@:2}"', "bash", LOOPBACK_UP]
    done = subprocess.run(
        [*program, *command(*words)],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr[-4000:]


def test_all_metrics_of_an_offline_run_are_sent_later(home, program, monkeypatch):
    run, store = home / "run", f"sqlite:///{home / 'runs.db'}"
    kill = "guard.inject=[{fault: kill, rank: 0, step: 17}]"
    train_offline(home, *TINY, "tracking=both", f"run={run}", kill, status=-9)
    train_offline(home, f"resume={run}", status=0)
    assert not (run / "wandb").exists()
    assert not (run / "mlruns").exists()
    lines = entries(run, "step") + entries(run, "held_out")
    assert len(lines) > 24 + 3  # some steps were taken twice
    kept = {(line["kind"], line["step"]): line for line in lines}  # the last of each
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        said = program("action=report", "sync=true", f"run={run}", f"to={store}")
    assert len(said.stdout.splitlines()) == 2
    (history,) = server.history.values()
    told = {
        (key, row["_step"], value)
        for row in history
        for key, value in row.items()
        if not key.startswith("_")
    }
    assert told == points_of(list(kept.values()))

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    (found,) = client.search_runs([client.get_experiment_by_name("kochbuch").experiment_id])
    stored = {
        (key, one.step, one.value)
        for key in found.data.metrics
        for one in client.get_metric_history(found.info.run_id, key)
    }
    assert stored == told
