"""lm-eval on an exported folder: offline, without remote code, templates in a sandbox.

The harness is EleutherAI's (Gao et al., https://github.com/EleutherAI/lm-evaluation-harness).
Figures are its own, under its own names; ``acc_norm`` divides by the characters of a choice.
"""

import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from components.config.targets import nearest
from components.data.files import record_file
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError
from components.evaluate.record import Tree, versions
from components.json_file import open_regular, parse_json

PACKAGE = "lm_eval"
_CODE_KEY = "auto_map"  # of a folder's JSON files: names Python files beside them


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """A task by its configuration, or without one by its name among those of lm-eval.

    ``files`` are what the configuration was read from and reads; ``known`` are other names to
    offer where there is none of this.
    """

    name: str
    config: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()
    known: tuple[str, ...] = field(default=())


def check_installed() -> None:
    """Say what is missing before anything is exported.

    Raises:
        RecipeError: lm-eval is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise RecipeError(
            "tasks",
            "lm-eval is not installed",
            "python -m pip install --require-hashes --no-deps -r requirements/evaluate.lock",
        )


@dataclass(frozen=True, kw_only=True)
class Harness:
    """Ask tasks of the model in ``folder``; ``compute`` is the recipe's, or the folder's own.

    ``most_rows`` requests are computed at once.
    """

    folder: Path
    compute: str | None
    most_rows: int

    def ask(self, tasks: Sequence[LmEvalTask]) -> Tree:
        """Give lm-eval's figures by task.

        Raises:
            RecipeError: no folder of Hugging Face, a folder with code, an unknown task or
                metric, or a task whose data are not at hand.
        """
        _check_folder(self.folder)
        with (
            contextlib.redirect_stdout(sys.stderr),
            _sandboxed_templates(),
            tempfile.TemporaryDirectory() as aside,
        ):
            manager = _manager(tasks)
            loaded = [one for task in tasks for one in _load(task, manager, Path(aside))]
            found = self._evaluate(loaded, manager)
        of = {task.name: task for task in tasks}
        return {
            name: {
                "metrics": _figures(figures),
                "samples": found["n-samples"][name]["effective"],
                "num_fewshot": found["n-shot"][name],
                "version": found["versions"][name],
                "sha256": {one.name: record_file(one).sha256 for one in _files(of, name)},
                "versions": versions("transformers", "lm-eval", "datasets"),
            }
            for name, figures in found["results"].items()
            if name in found["n-samples"]  # the others are groups
        }

    def _evaluate(self, tasks: list[Any], manager: Any) -> Tree:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = torch.device(device_type("auto"))
        dtype = "auto" if self.compute is None else compute_dtype(self.compute, device)
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        model: Any = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=dtype, use_safetensors=True, **safe
        )
        lm = HFLM(
            pretrained=model.to(device),
            tokenizer=AutoTokenizer.from_pretrained(self.folder, **safe),
            batch_size=self.most_rows,
        )
        found = simple_evaluate(model=lm, tasks=tasks, task_manager=manager, log_samples=False)
        assert found is not None, "one process is the first rank"
        tree: Tree = found
        return tree


def _files(tasks: Mapping[str, LmEvalTask], name: str) -> tuple[Path, ...]:
    return tasks[name].files if name in tasks else ()  # a task of a group that was asked


def _figures(found: Mapping[str, Any]) -> Tree:
    """Keep the numbers, ``acc`` and ``acc_stderr``, and the filter's name where it is one."""
    return {
        key.removesuffix(",none"): value
        for key, value in found.items()
        if isinstance(value, int | float) and key != "sample_len"
    }


def _check_folder(folder: Path) -> None:
    """Hold that the folder is a model of a class that transformers has, and no code.

    Raises:
        RecipeError: it is not.
    """
    if not (folder / "config.json").is_file():
        remedy = "action=export writes such a folder"
        raise RecipeError("file", f"{folder} has no config.json: no exported folder", remedy)
    for file in sorted(folder.glob("*.json")):
        if _CODE_KEY in _keys(file):
            problem = f"names Python files under {_CODE_KEY}, and code of a folder is never run"
            raise RecipeError(str(file), problem, "use a folder without it")


def _keys(file: Path) -> Iterator[str]:
    try:
        with open_regular(file) as stream:
            tree = parse_json(stream.read(), finite=False)
    except (OSError, ValueError) as error:
        raise RecipeError(str(file), f"cannot be read: {error}", "export again") from None
    return iter(tree if isinstance(tree, dict) else ())


@contextlib.contextmanager
def _sandboxed_templates() -> Iterator[None]:
    """Let no template of a task reach Python's attributes; lm-eval renders them unguarded."""
    from lm_eval import utils

    before = utils.env
    guarded = SandboxedEnvironment(
        undefined=before.undefined, keep_trailing_newline=before.keep_trailing_newline
    )
    guarded.filters.update(before.filters)
    utils.env = guarded
    try:
        yield
    finally:
        utils.env = before


def _manager(tasks: Sequence[LmEvalTask]) -> Any:
    """Index what lm-eval ships, thousands of files, only if a task is among it."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=any(task.config is None for task in tasks))


def _load(task: LmEvalTask, manager: Any, aside: Path) -> list[Any]:
    """Build a task, which reads its data and renders its first sample; a group is one too.

    What `datasets` makes of a task's own files lies in ``aside``.

    Raises:
        RecipeError: it is unknown, its data are not at hand, or lm-eval cannot use it.
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
            f"its data set is not at hand: {_first_line(error)}",
            "fetch it where there is a network (HF_HOME is its cache) and carry that over",
        ) from None
    except (TemplateError, ValueError, TypeError, KeyError, SyntaxError) as error:
        problem = f"lm-eval cannot use it: {type(error).__name__}: {_first_line(error)}"
        raise RecipeError(f"tasks.{task.name}", problem, "mend the task file") from None
    if task.name in built.get("groups", {}):
        return [built["groups"][task.name]]
    return list(built["tasks"].values())


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
                nearest(str(name), known),
            )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
