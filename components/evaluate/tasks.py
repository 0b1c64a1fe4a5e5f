"""Tasks of lm-eval, its own or a user's, built from what was checked before."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from components.config.suggestions import nearest, respelt
from components.errors import RecipeError

# What lm-eval raises for a task, its templates or its data; all of torch's are RuntimeErrors.
BY_A_TASK = (
    *(TemplateError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError),
    *(AttributeError, AssertionError, RecursionError, NotImplementedError, MemoryError),
)


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """A task by its configuration, or without one by its name among those of lm-eval.

    ``files`` are what the configuration was read from and reads; ``known``, names to offer.
    """

    name: str
    config: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()


def load_task(task: LmEvalTask, manager: Any, aside: Path) -> list[Any]:
    """Build a task, or a group, which reads its data and renders its first sample.

    What `datasets` makes of a task's own files lies in ``aside``.
    """
    spec: Any = task.name
    if task.config is not None:
        _check_metrics(task)
        reading = {**task.config["dataset_kwargs"], "cache_dir": str(aside)}
        spec = {**task.config, "dataset_kwargs": reading}
    elif task.name not in manager.task_index:
        known = [*task.known, *manager.all_tasks]
        raise RecipeError("tasks", f"there is no task {task.name!r}", nearest(task.name, known))
    try:
        built = manager.load([spec])
    except OSError as error:
        raise RecipeError(
            f"tasks.{task.name}",
            f"its data set is not at hand: {first_line(error)}",
            "fetch it where there is a network (HF_HOME is its cache) and carry that over",
        ) from None
    except BY_A_TASK as error:
        raise explain_failure(task.name, error) from None
    if task.name in built.get("groups", {}):
        return [built["groups"][task.name]]
    return list(built["tasks"].values())


def explain_failure(name: str, error: Exception) -> RecipeError:
    """Describe what lm-eval raised for a task."""
    problem = f"lm-eval cannot use it: {type(error).__name__}: {first_line(error)}"
    return RecipeError(f"tasks.{name}", problem, "correct the task file or its data")


def _check_metrics(task: LmEvalTask) -> None:
    """Refuse a metric that lm-eval would look for elsewhere: it would run what it finds."""
    from lm_eval.api import metrics, registry

    assert metrics, "its import fills the registry"
    for entry in (task.config or {}).get("metric_list") or ():
        name = entry.get("metric") if isinstance(entry, dict) else entry
        known = sorted(registry.metric_registry.keys())
        if name not in known or entry.get("hf_evaluate"):
            raise RecipeError(
                f"tasks.{task.name}.metric_list",
                f"{name!r} is no metric of lm-eval's own",
                respelt(str(name), known),
            )


def first_line(error: Exception) -> str:
    """Say of an error what fits a message: the first line, or its kind."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
