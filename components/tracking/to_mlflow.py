"""A run on a tracking server of MLflow, found again by its own id and gone on with.

MLflow keeps every value that it was given. So what was sent stays, also of steps that the run
took again later; the newer value, of the same step, comes beside it.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from components.config.schema.monitoring import Mlflow
from components.errors import RecipeError
from components.report.outcome import flat
from components.tracking.run_export import MetricsRow, RunExport

PREFIX = "kochbuch."  # of our tags
ID, SENT = f"{PREFIX}run", f"{PREFIX}sent_until"
# What one request may hold (mlflow.utils.validation), and how long a parameter may be.
MOST_METRICS, MOST_PARAMS, MOST_CHARACTERS = 1_000, 100, 6_000
_REFUSED = re.compile(r"[^\w\-. /]")  # in the name of a figure or a parameter
STATES = {"finished": "FINISHED", "stopped": "KILLED", "unfinished": "RUNNING"}


def send(told: RunExport, section: Mlflow, server: str) -> str:
    """Send what ``server``, a tracking URI of MLflow, does not have; return the run's id there.

    Raises:
        RecipeError: the server does not answer, or refuses.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        with contextlib.redirect_stdout(sys.stderr):  # its links; ours is the result
            return _send(MlflowClient(tracking_uri=server), told, section)
    except MlflowException as error:
        problem = f"{server}: {str(error).strip().splitlines()[0]}"
        remedy = "name a server that answers with to=URL, with the user and password or the "
        remedy += "token that it wants (MLFLOW_TRACKING_USERNAME, ...)"
        raise RecipeError("to", problem, remedy) from None


def _send(client: Any, told: RunExport, section: Mlflow) -> str:
    from mlflow.entities import RunTag

    run = _find(client, told, section)
    key = run.info.run_id
    _send_recipe(client, run, told)
    until = float(run.data.tags.get(SENT, "-inf"))
    for metrics, last in _batches(row for row in told.rows if row.time > until):
        # In the same request: where it breaks off, it is sent again, and MLflow knows it.
        client.log_batch(key, metrics=metrics, tags=[RunTag(SENT, repr(last))])
    for name, text in told.facts.items():
        client.set_tag(key, f"{PREFIX}{name}", text)
    state = STATES[told.status]
    if state == "RUNNING":
        client.update_run(key, status=state)
    else:
        client.set_terminated(key, state, end_time=_milliseconds(told.ended))
    return str(key)


def _find(client: Any, told: RunExport, section: Mlflow) -> Any:
    """Find the run in the experiment, or make both."""
    name = section.experiment
    there = client.get_experiment_by_name(name)
    place = there.experiment_id if there else client.create_experiment(name)
    found = client.search_runs([place], filter_string=f"tags.`{ID}` = '{told.id}'")
    if found:
        return found[0]
    began, tags = _milliseconds(told.began), {ID: told.id}
    return client.create_run(place, start_time=began, tags=tags, run_name=told.name)


def _send_recipe(client: Any, run: Any, told: RunExport) -> None:
    """Send the recipe as parameters; one that has changed since is a tag, they never change."""
    from mlflow.entities import Param

    there = run.data.params
    texts = {
        _name(key): (value if isinstance(value, str) else json.dumps(value))[:MOST_CHARACTERS]
        for key, value in flat(told.recipe).items()
    }
    new = [Param(key, text) for key, text in texts.items() if key not in there]
    for start in range(0, len(new), MOST_PARAMS):
        client.log_batch(run.info.run_id, params=new[start : start + MOST_PARAMS])
    for key, text in texts.items():
        if there.get(key, text) != text:
            client.set_tag(run.info.run_id, f"{PREFIX}changed.{key}", text)


def _name(key: str) -> str:
    return _REFUSED.sub("_", key)


def _batches(rows: Iterable[MetricsRow]) -> Iterator[tuple[list[Any], float]]:
    """Group rows into requests, with the time of their last row; no row is parted."""
    from mlflow.entities import Metric

    batch: list[Any] = []
    last = 0.0
    for row in rows:
        time, values = _milliseconds(row.time), row.values.items()
        metrics = [Metric(_name(key), value, time, row.step) for key, value in values]
        if batch and len(batch) + len(metrics) > MOST_METRICS:
            yield batch, last
            batch = []
        batch, last = [*batch, *metrics], row.time
    if batch:
        yield batch, last


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1_000)
