"""Run lm-eval on an exported folder: offline, no remote code, sandboxed templates.

The harness is EleutherAI's (Gao et al., https://github.com/EleutherAI/lm-evaluation-harness).
Metrics keep lm-eval's values and names. ``acc_norm`` divides by the characters of a choice.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from components.config.suggestions import suggest_respelling, suggest_similar
from components.data.files import record_file
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError, first_line
from components.evaluate.received import read_received, staged_folder
from components.evaluate.task_list import (
    ListedTask,
    StagedData,
    TaskList,
    TaskQuestion,
    patch_datasets,
)
from components.evaluate.text_loss import ResultTree, list_versions
from components.json_file import open_regular, parse_json

PACKAGE = "lm_eval"
INSTALL = "python -m pip install --require-hashes --no-deps -r requirements/evaluate.lock"
_CODE_KEY = "auto_map"  # key in a folder's JSON files that names Python files to run
PER_CENT = 100
# Errors that lm-eval raises for a bad task, template or data set. torch raises RuntimeError.
BY_A_TASK = (
    *(TemplateError, ValueError, TypeError, LookupError, SyntaxError, ArithmeticError),
    *(AttributeError, AssertionError, RecursionError, NotImplementedError, MemoryError),
)


def check_installed() -> None:
    """Raise a RecipeError if lm-eval is not installed, before any export."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise RecipeError("tasks", "lm-eval is not installed", INSTALL)


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """A task: a checked configuration, or without ``config`` the name of an lm-eval task.

    ``files`` are the task file and its data files. ``known`` are names for suggestions.
    """

    name: str
    config: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Harness:
    """lm-eval with the model of ``folder``; ``manager`` is lm-eval's ``TaskManager``.

    ``compute`` is the recipe's dtype; ``None`` selects the dtype in the folder's config.json.
    ``most_rows`` is the batch size. ``staged`` is the checked copy of ``folder``.
    """

    folder: Path
    staged: Path
    compute: str | None
    most_rows: int
    manager: Any

    @cached_property
    def language_model(self) -> Any:
        """lm-eval's ``HFLM`` on the device of this rank, loaded at first use."""
        from lm_eval.models.huggingface import HFLM

        accelerator = _accelerator()
        device = (
            torch.device(device_type("auto")) if accelerator is None else accelerator.device
        )
        dtype = "auto" if self.compute is None else compute_dtype(self.compute, device)
        model, tokenizer = read_received(self.staged, dtype, self.folder)
        harness_model = HFLM(
            pretrained=model.to(device), tokenizer=tokenizer, batch_size=self.most_rows
        )
        if accelerator is not None:  # HFLM assumes one process if it gets a loaded model
            harness_model.accelerator = accelerator
            harness_model._rank = accelerator.process_index
            harness_model._world_size = accelerator.num_processes
        return harness_model

    def load_task(self, task: LmEvalTask, cache: Path) -> list[Any]:
        """Load a task or group: read its data and render its first sample.

        `datasets` writes its converted copies of a user's files to ``cache``. An unknown task
        or metric, or missing data, is a RecipeError.
        """
        spec: Any = task.name
        if task.config is not None:
            _check_metrics(task)
            options = {**task.config["dataset_kwargs"], "cache_dir": str(cache)}
            spec = {**task.config, "dataset_kwargs": options}
        elif task.name not in self.manager.task_index:
            hint = suggest_similar(task.name, [*task.known, *self.manager.all_tasks])
            raise RecipeError("tasks", f"unknown task {task.name!r}", hint)
        try:
            built = self.manager.load([spec])
        except OSError as error:
            problem = f"its data set is not available: {first_line(error)}"
            remedy = "download it on a machine with a network and copy its cache (HF_HOME) here"
            raise RecipeError(f"tasks.{task.name}", problem, remedy) from None
        except BY_A_TASK as error:
            raise _explain_failure(task.name, error) from None
        groups = built.get("groups", {})
        return [groups[task.name]] if task.name in groups else list(built["tasks"].values())

    def evaluate_tasks(self, loaded: list[Any]) -> ResultTree | None:
        """Return lm-eval's results for these tasks; None on every rank except the first."""
        from lm_eval import simple_evaluate

        results: ResultTree | None = simple_evaluate(
            model=self.language_model,
            tasks=loaded,
            task_manager=self.manager,
            log_samples=False,
        )
        return results


@contextlib.contextmanager
def open_harness(
    folder: Path, *, compute: str | None, most_rows: int, shipped: bool = True
) -> Iterator[Harness]:
    """Open lm-eval on ``folder`` with sandboxed templates; its prints go to standard error.

    lm-eval by itself renders templates without a sandbox. ``shipped`` indexes its own tasks. A
    folder without a Hugging Face model, or with code, is a RecipeError.
    """
    _check_folder(folder)
    with staged_folder(folder) as staged:
        from lm_eval import utils  # imported only after the folder passes the checks

        newline = utils.env.keep_trailing_newline
        guarded = SandboxedEnvironment(
            undefined=utils.env.undefined, keep_trailing_newline=newline
        )
        guarded.filters.update(utils.env.filters)
        with contextlib.redirect_stdout(sys.stderr), patch.object(utils, "env", guarded):
            yield Harness(folder, staged, compute, most_rows, task_manager(shipped=shipped))


def _accelerator() -> Any:
    """Return an `Accelerator` over the ranks, as lm-eval does; None for one rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator  # type: ignore[import-untyped]  # it has no types

    return Accelerator(cpu=device_type("auto") == "cpu")


@cache
def task_manager(*, shipped: bool) -> Any:
    """Return lm-eval's task index (thousands of files), built once per process."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=shipped)


def _check_folder(folder: Path) -> None:
    """Check that the folder has a config.json and names no Python code."""
    if not (folder / "config.json").is_file():
        problem = f"{folder} is not an exported folder: it has no config.json"
        raise RecipeError("file", problem, "export a run with action=export")
    for file in sorted(folder.glob("*.json")):
        try:
            with open_regular(file) as stream:
                tree = parse_json(stream.read(), finite=False)
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {error}"
            raise RecipeError(str(file), problem, "export the run again") from None
        if isinstance(tree, dict) and _CODE_KEY in tree:
            problem = f"{_CODE_KEY} lists Python files, but code in a folder is never run"
            raise RecipeError(str(file), problem, "use a folder without code")


def _check_metrics(task: LmEvalTask) -> None:
    """Refuse metrics outside lm-eval's registry: lm-eval would download and run their code."""
    from lm_eval.api import metrics, registry

    assert metrics, "its import fills the registry"
    for entry in (task.config or {}).get("metric_list") or ():
        name = entry.get("metric") if isinstance(entry, dict) else entry
        known = sorted(registry.metric_registry.keys())
        if name not in known or entry.get("hf_evaluate"):
            problem = f"{name!r} is not a built-in metric of lm-eval"
            raise RecipeError(
                f"tasks.{task.name}.metric_list", problem, suggest_respelling(str(name), known)
            )


def _explain_failure(name: str, error: Exception) -> RecipeError:
    problem = f"lm-eval cannot use it: {type(error).__name__}: {first_line(error)}"
    return RecipeError(f"tasks.{name}", problem, "correct the task file or its data")


def ask_tasks(harness: Harness, tasks: Sequence[LmEvalTask]) -> ResultTree:
    """Return lm-eval's metrics by task; an empty dictionary on other ranks than the first."""
    own = [task.name for task in tasks if task.config is not None]
    with tempfile.TemporaryDirectory() as cache:
        loaded = [built for task in tasks for built in harness.load_task(task, Path(cache))]
        try:
            results = harness.evaluate_tasks(loaded)
        except BY_A_TASK as error:
            if isinstance(error, RecipeError) or not own:
                raise
            raise _explain_failure(",".join(own), error) from error
    if results is None:
        return {}
    files = {task.name: task.files for task in tasks}  # members of a group have no files
    return {
        name: {
            "metrics": {  # numbers; the key keeps a filter's name except "none"
                key.removesuffix(",none"): value
                for key, value in figures.items()
                if isinstance(value, int | float) and key != "sample_len"
            },
            "samples": results["n-samples"][name]["effective"],
            "num_fewshot": results["n-shot"][name],
            "version": results["versions"][name],
            "sha256": {file.name: record_file(file).sha256 for file in files.get(name, ())},
            "versions": list_versions("transformers", "lm-eval", "datasets"),
        }
        for name, figures in results["results"].items()
        if name in results["n-samples"]  # groups have no sample count
    }


def ask_list(
    harness: Harness, task_list: TaskList, data: StagedData, say: Callable[[str], None]
) -> ResultTree:
    """Return the scores of a task list in per cent, by task, and their plain mean.

    A task's score is the plain mean over its parts, one for each lm-eval task and language.
    Other ranks than the first compute their share of each question and return an empty
    dictionary. An lm-eval task of another version, or without the metric, is a RecipeError.
    """
    parts: dict[str, dict[str, ResultTree]] = {name: {} for name in task_list.tasks}
    with tempfile.TemporaryDirectory() as cache:
        for question in task_list.iter_questions():
            with patch_datasets(question, data, Path(cache)):
                part = _ask_question(harness, question, task_list.tasks[question.task])
            if part is not None:
                parts[question.task][question.part] = part
                say(f"{question.task}, {question.part}: {part['score']:.2f}")
    if not any(parts.values()):
        return {}
    scores = {name: _sum_up(task_list.tasks[name], each) for name, each in parts.items()}
    for name, task in task_list.tasks.items():
        if task.departs:
            say(f"{name} differs from its source: {task.departs}")
    counted = [scores[name]["score"] for name, task in task_list.tasks.items() if task.in_mean]
    return {
        "tasks": scores,
        "mean": fmean(counted),
        "data": {"tasks.json": data.sha256},
        "versions": list_versions("transformers", "lm-eval", "datasets"),
    }


def _sum_up(task: ListedTask, parts: dict[str, ResultTree]) -> ResultTree:
    """Average the parts of a task. With several parts the standard error is None."""
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


def _ask_question(
    harness: Harness, question: TaskQuestion, task: ListedTask
) -> ResultTree | None:
    """Run one task or group with the list's ``num_fewshot``; None except on the first rank."""
    name = question.lm_eval_task
    loaded = harness.load_task(LmEvalTask(name=name), Path())
    for built in loaded:
        for leaf in built.get_all_tasks() if hasattr(built, "get_all_tasks") else [built]:
            leaf.set_config(key="num_fewshot", value=task.num_fewshot)
            for key, template in question.templates.items():
                leaf.set_config(key=key, value=template)
    results = harness.evaluate_tasks(loaded)
    if results is None:
        return None
    version = results["versions"].get(name)
    # lm-eval stores a task's version as a number and a group's version as text.
    if str(version).removesuffix(".0") != str(task.version).removesuffix(".0"):
        problem = f"lm-eval's {name} has version {version}, the list requires {task.version}"
        raise RecipeError(f"tasks.{question.task}", problem, INSTALL)
    figures = results["results"][name]
    keys = [key for key in figures if key.partition(",")[0] == task.metric]
    scores = [key for key in keys if isinstance(figures[key], int | float)]
    if not scores:
        problem = f"lm-eval's {name} has no metric {task.metric!r}"
        raise RecipeError(f"tasks.{question.task}.metric", problem, "correct the list")
    # A key is "metric,filter". The score comes from the first filter.
    error = figures.get(f"{task.metric}_stderr,{scores[0].partition(',')[2]}")
    return {
        "score": PER_CENT * figures[scores[0]],
        "standard_error": PER_CENT * error if isinstance(error, float) else None,
        "samples": sum(count["effective"] for count in results["n-samples"].values()),
    }
