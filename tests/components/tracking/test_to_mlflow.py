"""What MLflow's own client reads back, against the lines that a run wrote."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from components.config.schema.monitoring import Mlflow
from components.errors import RecipeError
from components.report.outcome import flatten_tree
from components.tracking import to_mlflow
from components.tracking.run_export import read_run_export
from tests.components.report.conftest import mark_line
from tests.components.tracking import runs
from tests.components.tracking.runs import AGAIN, START, STEPS, points_of, step_line, write_run

pytestmark = [
    pytest.mark.long,  # seconds of imports
    pytest.mark.skipif(  # the package is optional
        find_spec("mlflow") is None,
        reason="MLflow is not installed: requirements/tracking.lock",
    ),
    pytest.mark.filterwarnings(  # MLflow's own use of SQLAlchemy
        "ignore:The ``noload`` loader strategy is deprecated"
    ),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for all tests: its tables take seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'runs.db'}"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def send(folder: Path, store: str) -> Any:
    """Send, and let MLflow's client find what it was told."""
    from mlflow import MlflowClient

    section = Mlflow(experiment=folder.parent.name)  # a test's own
    key = to_mlflow.send_rows(read_run_export(folder), section, store)
    client = MlflowClient(tracking_uri=store)
    (found,) = client.search_runs([client.get_run(key).info.experiment_id])
    return found


def points(found: Any, store: str) -> list[tuple[str, int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    return [
        (name, one.step, one.value)
        for name in found.data.metrics
        for one in client.get_metric_history(found.info.run_id, name)
    ]


def once(listed: list[tuple[str, int, float]]) -> runs.Points:
    assert len(set(listed)) == len(listed), "something was sent twice"
    return set(listed)


def test_a_resumed_run_sends_only_new_values(tmp_path: Path, store: str, monkeypatch) -> None:
    monkeypatch.setattr(to_mlflow, "MOST_METRICS", 25)  # several requests
    begun = [*START, *STEPS[:2]]
    first = send(write_run(tmp_path / "run", begun), store)
    assert once(points(first, store)) == points_of(begun)
    assert (first.info.status, first.info.run_name) == ("RUNNING", "run")
    again = send(tmp_path / "run", store)
    assert once(points(again, store)) == points_of(begun)
    last = send(write_run(tmp_path / "run", [*START, *STEPS], status="finished"), store)
    assert last.info.run_id == first.info.run_id
    assert once(points(last, store)) == points_of([*START, *STEPS])
    assert (last.info.status, last.info.end_time) == ("FINISHED", 6_000)


def test_a_failed_request_is_sent_again(tmp_path, store: str, monkeypatch) -> None:
    from mlflow import MlflowClient

    folder = write_run(tmp_path / "run", [*START, *STEPS])
    whole = MlflowClient.log_batch

    def breaks_off(client: Any, key: str, metrics: Any = (), **others: Any) -> None:
        whole(client, key, metrics=metrics[:14])
        if metrics:
            raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_batch", breaks_off)
        with pytest.raises(ConnectionError):
            send(folder, store)
    assert once(points(send(folder, store), store)) == points_of([*START, *STEPS])


def test_repeated_steps_are_sent_with_earlier_values_kept(tmp_path: Path, store: str) -> None:
    send(write_run(tmp_path / "run", [*START, *STEPS]), store)
    both = [*START, *STEPS, *AGAIN]
    found = points(send(write_run(tmp_path / "run", both), store), store)
    assert set(found) == points_of(both)
    losses = [value for name, step, value in found if (name, step) == ("loss", 4)]
    assert losses == [STEPS[3]["loss"], AGAIN[1]["loss"]]


def test_the_recipe_and_changes_of_a_move_are_sent(tmp_path: Path, store: str) -> None:
    folder = write_run(tmp_path / "run", [*START, *STEPS])
    run_export = read_run_export(folder)
    found = send(folder, store)
    recipe = flatten_tree(run_export.recipe)
    assert found.data.params.keys() == recipe.keys()
    assert found.data.params["budget.total_tokens"] == str(recipe["budget.total_tokens"])
    assert found.data.tags["kochbuch.fingerprint"] == run_export.facts["fingerprint"]
    assert found.data.tags["kochbuch.commit"] == "0123abc"
    moved = [*START, *STEPS, mark_line("resume", 5), step_line(6)]
    found = send(write_run(folder, moved, "checkpoint.keep=9"), store)
    changed = {key: text for key, text in found.data.tags.items() if ".changed." in key}
    assert changed == {"kochbuch.changed.checkpoint.keep": "9"}


def test_names_that_mlflow_refuses_are_replaced() -> None:
    assert to_mlflow._name("held_out_by_source/c++ (eu)") == "held_out_by_source/c__ _eu_"


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*START, *STEPS])
    with pytest.raises(RecipeError, match=r"to: http://127\.0\.0\.1:9: .*\n.*MLFLOW_TRACKING"):
        send(folder, "http://127.0.0.1:9")
