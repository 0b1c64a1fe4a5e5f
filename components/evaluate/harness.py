"""lm-eval on an exported folder: offline, without remote code, templates in a sandbox.

The harness is EleutherAI's (Gao et al., https://github.com/EleutherAI/lm-evaluation-harness).
Figures are its own, under its own names; ``acc_norm`` divides by the characters of a choice.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from jinja2.sandbox import SandboxedEnvironment

from components.data.files import record_file
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError
from components.evaluate.received import read_received, staged_folder
from components.evaluate.tasks import BY_A_TASK, LmEvalTask, explain_failure, load_task
from components.evaluate.text_loss import Tree, versions
from components.json_file import open_regular, parse_json

PACKAGE = "lm_eval"
_CODE_KEY = "auto_map"  # of a folder's JSON files: names Python files beside them


def check_installed() -> None:
    """Describe what is missing before anything is exported.

    Raises:
        RecipeError: lm-eval is not installed.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise RecipeError(
            "tasks",
            "lm-eval is not installed",
            install_again(),
        )


def install_again() -> str:
    """Give the command that brings the version of lm-eval that is meant."""
    return "python -m pip install --require-hashes --no-deps -r requirements/evaluate.lock"


def ask_tasks(
    folder: Path, tasks: Sequence[LmEvalTask], *, compute: str | None, most_rows: int
) -> Tree:
    """Return lm-eval's figures by task, of the model in ``folder``; none but on the first rank.

    ``compute`` is the recipe's dtype, or without one the folder's own; ``most_rows`` requests
    are computed at once.

    Raises:
        RecipeError: no folder of Hugging Face, a folder with code, an unknown task or metric,
            or a task whose data are not at hand.
    """
    with (
        # What lm-eval ships are thousands of files: they are indexed only for one of theirs.
        open_harness(
            folder,
            compute=compute,
            most_rows=most_rows,
            shipped=any(task.config is None for task in tasks),
        ) as harness,
        tempfile.TemporaryDirectory() as aside,
    ):
        manager = harness.manager
        loaded = [one for task in tasks for one in load_task(task, manager, Path(aside))]
        own = [task.name for task in tasks if task.config is not None]
        try:
            found = harness.ask(loaded)
        except BY_A_TASK as error:
            if isinstance(error, RecipeError) or not own:
                raise
            raise explain_failure(",".join(own), error) from error
    if found is None:
        return {}
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


@dataclass(frozen=True)
class BuiltTask:
    """A task or a group of lm-eval, and its tasks."""

    asked: list[Any]
    leaves: list[Any]


@dataclass(frozen=True)
class Harness:
    """lm-eval with the model of a folder; ``manager`` has its tasks."""

    folder: Path
    staged: Path
    compute: str | None
    most_rows: int
    manager: Any

    @cached_property
    def model(self) -> Any:
        """lm-eval's ``HFLM`` on its rank's device, loaded when the first task is asked."""
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
        if accelerator is not None:  # a model that is loaded is taken for that of one process
            harness_model.accelerator = accelerator
            harness_model._rank = accelerator.process_index
            harness_model._world_size = accelerator.num_processes
        return harness_model

    def load(self, name: str) -> BuiltTask:
        """Build one of the tasks or groups that lm-eval ships, which reads its data.

        Raises:
            RecipeError: it has none of that name, or cannot use the data.
        """
        asked = load_task(LmEvalTask(name=name), self.manager, Path())
        return BuiltTask(asked, [leaf for one in asked for leaf in _leaves(one)])

    def ask(self, loaded: list[Any]) -> Tree | None:
        """Return all that lm-eval says of these tasks; None on all ranks but the first."""
        from lm_eval import simple_evaluate

        found: Tree | None = simple_evaluate(
            model=self.model, tasks=loaded, task_manager=self.manager, log_samples=False
        )
        return found


@contextlib.contextmanager
def open_harness(
    folder: Path, *, compute: str | None, most_rows: int, shipped: bool = True
) -> Iterator[Harness]:
    """Bound what lm-eval does: no template reaches Python's attributes, nothing is printed.

    lm-eval itself renders them unguarded.

    Raises:
        RecipeError: no folder of Hugging Face, or a folder with code.
    """
    _check_folder(folder)
    with staged_folder(folder) as staged:
        from lm_eval import utils  # only for a folder that passed

        newline = utils.env.keep_trailing_newline
        guarded = SandboxedEnvironment(
            undefined=utils.env.undefined, keep_trailing_newline=newline
        )
        guarded.filters.update(utils.env.filters)
        with contextlib.redirect_stdout(sys.stderr), patch.object(utils, "env", guarded):
            yield Harness(folder, staged, compute, most_rows, task_manager(shipped=shipped))


def _accelerator() -> Any:
    """Join the ranks of this evaluation by `accelerate`, as lm-eval would; None of one rank."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator  # type: ignore[import-untyped]  # it has no types

    return Accelerator(cpu=device_type("auto") == "cpu")


@cache
def task_manager(*, shipped: bool) -> Any:
    """Index the tasks of lm-eval once a process; without ``shipped`` there are none."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=shipped)


def _leaves(built: Any) -> list[Any]:
    return list(built.get_all_tasks()) if hasattr(built, "get_all_tasks") else [built]


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
