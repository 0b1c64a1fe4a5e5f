"""Scores of a named list of tasks: each question is lm-eval's own, read from staged data."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

from components.errors import RecipeError
from components.evaluate.harness import Harness, install_again
from components.evaluate.staged import StagedData, reading
from components.evaluate.task_list import ListedTask, TaskList, TaskQuestion
from components.evaluate.text_loss import Tree, versions

PER_CENT = 100


def ask_list(
    harness: Harness, asked: TaskList, data: StagedData, say: Callable[[str], None]
) -> Tree:
    """Return the scores of a list in per cent, by task, and their plain mean.

    A task's score is the plain mean over its parts: what it asks, in each language. Ranks but
    the first answer their share of each question, and return nothing.

    Raises:
        RecipeError: lm-eval has another version of a task, or no such metric of it.
    """
    parts: dict[str, dict[str, Tree]] = {name: {} for name in asked.tasks}
    with tempfile.TemporaryDirectory() as aside:
        for question in asked.questions():
            task = asked.tasks[question.task]
            with reading(question, data, Path(aside)):
                found = _ask(harness, question, task)
            if found is not None:
                parts[question.task][question.part] = found
                say(f"{question.task}, {question.part}: {found['score']:.2f}")
    if not any(parts.values()):
        return {}
    scores = {name: _score(asked.tasks[name], found) for name, found in parts.items()}
    for name, task in asked.tasks.items():
        if task.departs:
            say(f"{name} departs from its source: {task.departs}")
    counted = [scores[name]["score"] for name, task in asked.tasks.items() if task.in_mean]
    return {
        "tasks": scores,
        "mean": fmean(counted),
        "data": {"tasks.json": data.sha256},
        "versions": versions("transformers", "lm-eval", "datasets"),
    }


def _score(task: ListedTask, parts: dict[str, Tree]) -> Tree:
    """Sum up a task; of several parts there is no standard error."""
    errors = [part.pop("standard_error") for part in parts.values()]
    return {
        "score": fmean(part["score"] for part in parts.values()),
        "standard_error": errors[0] if len(errors) == 1 else None,
        "metric": task.metric,
        "num_fewshot": task.num_fewshot,
        "samples": sum(part["samples"] for part in parts.values()),
        "departs": task.departs,
        "parts": parts,
    }


def _ask(harness: Harness, question: TaskQuestion, task: ListedTask) -> Tree | None:
    """Ask one task or group, with the list's shots; the first rank knows the figures."""
    loaded = harness.load(question.asked)
    for leaf in loaded.leaves:
        leaf.set_config(key="num_fewshot", value=task.num_fewshot)
        for key, template in question.templates.items():
            leaf.set_config(key=key, value=template)
    found = harness.ask(loaded.asked)
    if found is None:
        return None
    figures = found["results"][question.asked]
    if not _same(version := found["versions"].get(question.asked), task.version):
        problem = f"lm-eval's {question.asked} has version {version}, the list's {task.version}"
        raise RecipeError(f"tasks.{question.task}", problem, install_again())
    scores = dict(_of_metric(figures, task.metric))
    if not scores:
        problem = f"lm-eval's {question.asked} has no metric {task.metric!r}"
        raise RecipeError(f"tasks.{question.task}.metric", problem, "mend the list")
    filtered, score = next(iter(scores.items()))
    error = figures.get(f"{task.metric}_stderr,{filtered}")
    counts = found["n-samples"]
    return {
        "score": PER_CENT * score,
        "standard_error": PER_CENT * error if isinstance(error, float) else None,
        "samples": sum(one["effective"] for one in counts.values()),
    }


def _same(one: object, other: object) -> bool:
    """Compare versions: of a task a number is one, of a group it is text."""
    return str(one).removesuffix(".0") == str(other).removesuffix(".0")


def _of_metric(figures: Tree, metric: str) -> Iterator[tuple[str, float]]:
    """Give a metric by the filter that its answers went through, the first of them first."""
    for key, value in figures.items():
        name, _, filtered = key.partition(",")
        if name == metric and isinstance(value, int | float):
            yield filtered, value
