"""MLflow: send a run to a tracking server. The run's own id finds an earlier export to extend.

MLflow keeps every value. If the run repeats a step, the newer value is added to the same step
and the older one stays.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from components.config.schema.monitoring import Mlflow
from components.errors import RecipeError
from components.report.outcome import flatten_tree
from components.tracking.run_export import MetricsRow, RunExport

PREFIX = "kochbuch."  # of our tags
ID, SENT = f"{PREFIX}run", f"{PREFIX}sent_until"
# Limits of one request (mlflow.utils.validation), and the maximum length of a parameter.
MOST_METRICS, MOST_PARAMS, MOST_CHARACTERS = 1_000, 100, 6_000
_REFUSED = re.compile(r"[^\w\-. /]")  # not allowed in names of metrics or parameters
STATES = {"finished": "FINISHED", "stopped": "KILLED", "unfinished": "RUNNING"}


def send_rows(export: RunExport, section: Mlflow, server: str) -> str:
    """Send the rows that ``server``, a tracking URI, lacks. Return the run's id there."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for our result
            return _send(MlflowClient(tracking_uri=server), export, section)
    except MlflowException as error:
        problem = f"{server}: {str(error).strip().splitlines()[0]}"
        remedy = "set to=URL to a running server, and its user and password or "
        remedy += "token (MLFLOW_TRACKING_USERNAME, ...)"
        raise RecipeError("to", problem, remedy) from None


def _send(client: Any, export: RunExport, section: Mlflow) -> str:
    from mlflow.entities import RunTag

    run = _find(client, export, section)
    key = run.info.run_id
    _send_recipe(client, run, export)
    until = float(run.data.tags.get(SENT, "-inf"))
    for metrics, last in _batches(row for row in export.metrics_rows if row.time > until):
        # In the same request: after an interruption it is sent again, and MLflow recognizes it.
        client.log_batch(key, metrics=metrics, tags=[RunTag(SENT, repr(last))])
    for name, text in export.facts.items():
        client.set_tag(key, f"{PREFIX}{name}", text)
    state = STATES[export.status]
    if state == "RUNNING":
        client.update_run(key, status=state)
    else:
        client.set_terminated(key, state, end_time=_milliseconds(export.ended))
    return str(key)


def _find(client: Any, export: RunExport, section: Mlflow) -> Any:
    """Return the run of the experiment. Create both if necessary."""
    name = section.experiment
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    runs = client.search_runs([experiment_id], filter_string=f"tags.`{ID}` = '{export.id}'")
    if runs:
        return runs[0]
    began, tags = _milliseconds(export.began), {ID: export.id}
    return client.create_run(experiment_id, start_time=began, tags=tags, run_name=export.name)


def _send_recipe(client: Any, run: Any, export: RunExport) -> None:
    """Send the recipe as parameters. They are immutable, so a later change is sent as a tag."""
    from mlflow.entities import Param

    sent = run.data.params
    texts = {
        _name(key): (value if isinstance(value, str) else json.dumps(value))[:MOST_CHARACTERS]
        for key, value in flatten_tree(export.recipe).items()
    }
    new = [Param(key, text) for key, text in texts.items() if key not in sent]
    for start in range(0, len(new), MOST_PARAMS):
        client.log_batch(run.info.run_id, params=new[start : start + MOST_PARAMS])
    for key, text in texts.items():
        if sent.get(key, text) != text:
            client.set_tag(run.info.run_id, f"{PREFIX}changed.{key}", text)


def _name(key: str) -> str:
    return _REFUSED.sub("_", key)


def _batches(rows: Iterable[MetricsRow]) -> Iterator[tuple[list[Any], float]]:
    """Group rows into requests, each with the time of its last row. A row is never split."""
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
