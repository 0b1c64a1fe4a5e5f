"""``python run.py -m study=NAME``: what a study's file says, with the user's words over it."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from command.actions import auto
from command.arguments import ROOT, read_point
from command.data_file import read_data
from command.labels import as_folder, folder_of_runs
from command.outcome import Status
from command.points import STUDY, submits
from command.study_runs import Planned, Point, Trained
from command.study_search import Runner, open_trials, reason, search
from command.study_table import print_trials, trials_tree
from components.errors import RecipeError
from components.spec.study import Study, check_study
from components.spec.targets import nearest

JOURNAL = "study.journal"
OVER = "study."  # keys of the study's own file
MINE = (STUDY, OVER, "run=", "action=", "output=", "at_most=")


@dataclass(frozen=True)
class Asked:
    """One study as the command line asks for it; ``words`` are what every point has."""

    study: Study
    words: tuple[str, ...]
    action: str
    output: str
    folder: Path

    def words_of(self, point: Point) -> list[str]:
        """Write a point as the command line would; a key that the user names stays as it is."""
        named = {word.partition("=")[0] for word in self.words}
        values = self.study.values(point).items()
        own = [f"{key}={json.dumps(value)}" for key, value in values if key not in named]
        here = [] if self.action == "plan" else [f"run={self.folder_of(point)}"]
        return [*self.words, *own, *here]

    def folder_of(self, point: Point) -> Path:
        """Name the keys in the study's order: a journal gives them back in another."""
        return self.folder / as_folder(f"{key}={point[key]}" for key in self.study.space)


def run_study(words: Sequence[str]) -> Status:
    """Search until the study has its trials, and print what was found.

    Raises:
        RecipeError: the study, or a word beside it, is wrong.
    """
    asked = _asked(words)
    planned = asked.action == "plan"
    trials = open_trials(asked.study, None if planned else asked.folder / JOURNAL)
    try:
        search(asked.study, trials, _runner(asked), lambda trial: _say(trials, trial))
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; the same command goes on. Kept in {asked.folder}\n")
        return Status.STOPPED
    published = _figure_of_published(asked) if planned else None
    if asked.output == "json":
        sys.stdout.write(json.dumps(trials_tree(asked.study, trials, published)) + "\n")
    else:
        print_trials(asked.study, trials, published)
    found = trials.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return Status.DONE if found else Status.WRONG_INPUT


def find_study(name: str) -> tuple[Path, dict[str, Any]]:
    """Read ``studies/NAME.yaml``, or the file at a path that ends in ``.yaml``.

    Raises:
        RecipeError: there is none of that name, or it is no plain YAML.
    """
    file = Path(name).expanduser()
    if file.suffix != ".yaml":
        known = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
        if name not in known:
            raise RecipeError("study", f"there is no study {name!r}", nearest(name, known))
        file = ROOT / "studies" / f"{name}.yaml"
    return file, read_data(file, "study").tree


def _asked(words: Sequence[str]) -> Asked:
    (name,) = (word.partition("=")[2] for word in words if word.startswith(STUDY))
    file, tree = find_study(name)
    arguments = read_point([w for w in words if not w.startswith((STUDY, OVER))])
    over = read_point([word for word in words if word.startswith(OVER)]).values
    if arguments.at_most is not None:
        over["study.search.at_once"] = arguments.at_most
    for key, value in over.items():
        _put(tree, key.removeprefix(OVER).split("."), value, key)
    study = check_study(tree, file.name)
    own = _with_choices(study, [word for word in words if not word.startswith(MINE)])
    for key in (*arguments.values, *arguments.choices):
        if key in study.space:
            remedy = f"leave {key} out, or write study.space.{key}=[...] in a file of your own"
            raise RecipeError(key, f"the study {study.name} varies it", remedy)
    digest = json.dumps([study.model_dump(mode="json", exclude={"search"}), own])
    return Asked(
        study=study,
        words=tuple(own),
        action=_action(arguments.action, own),
        output=arguments.output,
        folder=folder_of_runs(arguments, study.name, digest),
    )


def _put(tree: dict[str, Any], steps: Sequence[str], value: object, key: str) -> None:
    """Change a key that the study's file has."""
    *before, last = steps
    for step in before:
        tree = tree.get(step, {}) if isinstance(tree, dict) else {}
    if not isinstance(tree, dict) or last not in tree:
        raise RecipeError(key, "the study's file has no such key", "see studies/")
    tree[last] = value


def _with_choices(study: Study, own: list[str]) -> list[str]:
    """Take recipe and cluster from the study where the user names none."""
    named = {word.partition("=")[0] for word in own}
    ours = {"recipe": study.recipe, "cluster": study.cluster}
    return [*(f"{key}={value}" for key, value in ours.items() if key not in named), *own]


def _action(action: str, own: list[str]) -> str:
    if action == "auto":
        return "submit" if submits([own]) else "train"
    if action not in {"plan", "train", "submit"}:
        remedy = "action=plan compares plans; without action= its points are run"
        raise RecipeError("action", f"{action!r} gives a study no figures", remedy)
    return action


def _runner(asked: Asked) -> Runner:
    objective = asked.study.objective
    if asked.action == "plan":
        return Planned(words=asked.words_of, key=_planned_key(asked.study))
    if asked.action == "train":
        return Trained(
            words=asked.words_of,
            folder=asked.folder_of,
            key=objective.measured,
            train=_train,
        )
    from command.study_queue import Submitted  # imports torch

    return Submitted(words=asked.words_of, folder=asked.folder_of, key=objective.measured)


def _planned_key(study: Study) -> str:
    if study.objective.planned is None:
        remedy = "run it: leave action=plan out"
        raise RecipeError("action", f"no plan knows {study.objective.measured}", remedy)
    return study.objective.planned


def _train(words: Sequence[str]) -> None:
    """Train a point, or go on with it; who interrupts a run interrupts the study."""
    folder = next(word for word in words if word.startswith("run="))
    if Path(folder.removeprefix("run=")).exists():
        words = [folder.replace("run=", "resume=", 1)]
    with redirect_stdout(sys.stderr):  # standard output is the study's
        ended = auto.run(read_point(words))
    if ended.status == Status.STOPPED:
        raise KeyboardInterrupt


def _figure_of_published(asked: Asked) -> float | None:
    """Plan the point that the work published, if it names one."""
    if asked.study.published.keys() != asked.study.space.keys():
        return None
    runner = Planned(words=asked.words_of, key=_planned_key(asked.study))
    runner.start(asked.study.published)
    return runner.look(asked.study.published).figure


def _say(trials: optuna.Study, trial: FrozenTrial) -> None:
    point = ", ".join(f"{key}={value}" for key, value in trial.params.items())
    figure = reason(trials, trial) if trial.value is None else f"{trial.value:,.6g}"
    sys.stderr.write(f"[{trial.number + 1}] {point}: {figure}\n")
