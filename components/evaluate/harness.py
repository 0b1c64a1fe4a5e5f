"""lm-eval on an exported folder: offline, without remote code, templates in a sandbox.

The harness is EleutherAI's (Gao et al., https://github.com/EleutherAI/lm-evaluation-harness).
Figures are its own, under its own names; ``acc_norm`` divides by the characters of a choice.
"""

import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from jinja2 import TemplateError
from jinja2.sandbox import SandboxedEnvironment

from components.config.suggestions import nearest
from components.data.files import record_file
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError
from components.evaluate.text_loss import Tree, versions
from components.json_file import open_regular, parse_json

PACKAGE = "lm_eval"
_CODE_KEY = "auto_map"  # of a folder's JSON files: names Python files beside them


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """A task by its configuration, or without one by its name among those of lm-eval.

    ``files`` are what the configuration was read from and reads; ``known``, names to offer.
    """

    name: str
    config: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()
    known: tuple[str, ...] = ()


def check_installed() -> None:
    """Describe what is missing before anything is exported.

    Raises:
        RecipeError: lm-eval is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise RecipeError(
            "tasks",
            "lm-eval is not installed",
            "python -m pip install --require-hashes --no-deps -r requirements/evaluate.lock",
        )


def ask_tasks(
    folder: Path, tasks: Sequence[LmEvalTask], *, compute: str | None, most_rows: int
) -> Tree:
    """Return lm-eval's figures by task, of the model in ``folder``.

    ``compute`` is the recipe's dtype, or without one the folder's own; ``most_rows`` requests
    are computed at once.

    Raises:
        RecipeError: no folder of Hugging Face, a folder with code, an unknown task or metric,
            or a task whose data are not at hand.
    """
    _check_folder(folder)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as aside:
        found = _evaluate(folder, tasks, compute, most_rows, Path(aside))
    files = {task.name: task.files for task in tasks}  # a group that was asked has none
    return {
        name: {
            "metrics": {  # numbers, and the filter's name where there is one
                key.removesuffix(",none"): value
                for key, value in figures.items()
                if isinstance(value, int | float) and key != "sample_len"
            },
            "samples": found["n-samples"][name]["effective"],
            "num_fewshot": found["n-shot"][name],
            "version": found["versions"][name],
            "sha256": {one.name: record_file(one).sha256 for one in files.get(name, ())},
            "versions": versions("transformers", "lm-eval", "datasets"),
        }
        for name, figures in found["results"].items()
        if name in found["n-samples"]  # the others are groups
    }


def _evaluate(
    folder: Path, tasks: Sequence[LmEvalTask], compute: str | None, most_rows: int, aside: Path
) -> Tree:
    """Load the tasks and the model, and ask; no template reaches Python's attributes.

    lm-eval itself renders them unguarded.
    """
    from lm_eval import simple_evaluate, utils
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoModelForCausalLM, AutoTokenizer

    newline = utils.env.keep_trailing_newline
    guarded = SandboxedEnvironment(undefined=utils.env.undefined, keep_trailing_newline=newline)
    guarded.filters.update(utils.env.filters)
    with patch.object(utils, "env", guarded):
        # What lm-eval ships are thousands of files: they are indexed only for a task of theirs.
        manager = TaskManager(include_defaults=any(task.config is None for task in tasks))
        loaded = [one for task in tasks for one in _load(task, manager, aside)]
        device = torch.device(device_type("auto"))
        dtype = "auto" if compute is None else compute_dtype(compute, device)
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, **safe
        )
        lm = HFLM(
            pretrained=model.to(device),
            tokenizer=AutoTokenizer.from_pretrained(folder, **safe),
            batch_size=most_rows,
        )
        found = simple_evaluate(model=lm, tasks=loaded, task_manager=manager, log_samples=False)
    assert found is not None, "one process is the first rank"
    tree: Tree = found
    return tree


def _check_folder(folder: Path) -> None:
    """Check that the folder is a model of a class that transformers has, and no code."""
    if not (folder / "config.json").is_file():
        problem = f"{folder} has no config.json: no exported folder"
        raise RecipeError("file", problem, "action=export writes such a folder")
    for file in sorted(folder.glob("*.json")):
        try:
            with open_regular(file) as stream:
                tree = parse_json(stream.read(), finite=False)
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {error}"
            raise RecipeError(str(file), problem, "export again") from None
        if isinstance(tree, dict) and _CODE_KEY in tree:
            problem = f"names Python files under {_CODE_KEY}, and code of a folder is never run"
            raise RecipeError(str(file), problem, "use a folder without it")


def _load(task: LmEvalTask, manager: Any, aside: Path) -> list[Any]:
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
