"""Requests: a study's file or a sweep, combined with the user's words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from command.arguments import ROOT, Arguments, read_point
from command.files.yaml_file import read_sections
from command.recipe.lock_file import check_recipe_place
from command.study.schema import (
    RECIPE,
    TOKENIZER,
    ListedStudy,
    Objective,
    Point,
    QueueLimits,
    SearchStudy,
    as_scalar,
)
from command.study.study_file import check_study, list_varied_keys
from command.study.sweep_points import (
    HERE,
    STUDY,
    as_folder,
    folder_of_runs,
    is_submitted,
    label_points,
    name_of,
    named_after,
)
from command.words import SWEEP, check_recipe_words, check_words, keys_of
from components.config.schema.types import to_plain
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

OVER = "study."  # prefix of keys of the study's own file
NO_RUN_HAS = {"search", "queue", "figure", "description", "columns", "measures"}
MINE = (STUDY, "run=", "action=", "output=", "at_most=", "file=")
SWEPT_COLUMNS = {
    "training loss": Objective(measured="loss"),
    "steps": Objective(measured="steps"),
    "tokens": Objective(measured="tokens"),
    "tokens/s": Objective(measured="tokens_per_second"),
}


@dataclass(frozen=True)
class StudyRequest:
    """A requested study; ``words`` apply to every point, ``changed`` differ from the file."""

    study: SearchStudy | ListedStudy
    given: str  # the value of study=
    words: tuple[str, ...]
    changed: tuple[str, ...]
    action: str
    output: str
    folder: Path
    page: Path

    def arguments_of(self, point: Point) -> Arguments:
        """Return the arguments of a point. Keys in the user's words override the study's."""
        named = {word.partition("=")[0] for word in self.words}
        values = {RECIPE: self.study.recipe, **self.study.collect_values(point)}
        own = {key: to_plain(value) for key, value in values.items() if key not in named}
        words = list(self.words)
        if RECIPE in own:
            recipe = check_recipe_place(str(own.pop(RECIPE)), f"{self.study.name}.recipe")
            words.append(f"{RECIPE}={recipe}")
        if TOKENIZER in own:
            words.append(f"{TOKENIZER}={own.pop(TOKENIZER)}")
        if self.action != "plan":
            words.append(f"run={self.folder_of(point)}")
        assignments = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        return replace(read_point(words), words=(*words, *assignments), file_values=own)

    def folder_of(self, point: Point) -> Path:
        """Return a point's folder, with keys in the study's order: a journal's differs."""
        keys = list_varied_keys(self.study)
        return self.folder / as_folder(f"{key}={as_scalar(point[key])}" for key in keys)


@dataclass(frozen=True)
class SweepRequest(StudyRequest):
    """A sweep: a listed study over the words that its points do not share."""

    folders: Mapping[tuple[str, ...], str]  # by a point's values

    def arguments_of(self, point: Point) -> Arguments:
        words = [*self.words, *(f"{key}={text}" for key, text in point.items())]
        return replace(read_point(words), run=self.folder_of(point))

    def folder_of(self, point: Point) -> Path:
        return self.folder / self.folders[tuple(point.values())]


def ask_sweep(points: Sequence[Sequence[str]]) -> SweepRequest:
    """Build a listed study from the points of a sweep."""
    shared = [word for word in points[0] if all(word in point for point in points)]
    varying = [
        dict(word.partition("=")[::2] for word in point if word not in shared)
        for point in points
    ]
    arguments = read_point(shared)
    action = arguments.action
    if action == "auto":
        action = "submit" if is_submitted(points) else "train"
    check_words(action, [*keys_of(points[0]), SWEEP])
    study = ListedStudy(
        name="sweep",
        recipe=arguments.recipe or "several recipes",
        cluster=arguments.choices.get("cluster", HERE),
        points=tuple(varying),
        objective=Objective(measured="held_out.final"),
        columns=SWEPT_COLUMNS,
        queue=QueueLimits(at_once=arguments.at_most or len(points), poll_seconds=60),
    )
    runs = ROOT / "runs" if action == "submit" else Path("runs")
    folder = folder_of_runs(arguments, name_of(points), runs)
    return SweepRequest(
        study=study,
        given="",
        words=tuple(word for word in shared if not word.startswith(MINE)),
        changed=(),
        action=action,
        output=arguments.output,
        folder=folder,
        page=arguments.file or folder / "sweep.html",
        folders={
            tuple(point.values()): label
            for point, label in zip(varying, label_points(points), strict=True)
        },
    )


def read_study_request(words: Sequence[str]) -> StudyRequest:
    """Read ``studies/NAME.yaml`` or the named file, and apply the words that change it."""
    arguments = read_point([word for word in words if not word.startswith(OVER)])
    name = str(arguments.study)
    file = Path(name).expanduser()
    if file.suffix != ".yaml":
        known = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
        if name not in known:
            raise RecipeError("study", f"unknown study: {name!r}", suggest_similar(name, known))
        file = ROOT / "studies" / f"{name}.yaml"
    tree = read_sections(file, "study").tree
    over = read_point([word for word in words if word.startswith(OVER)]).values
    if arguments.at_most is not None:
        over[f"study.{'search' if 'search' in tree else 'queue'}.at_once"] = arguments.at_most
    for key, value in over.items():
        _put(tree, key, value)
    study = check_study(tree, file.name)
    for key in (*arguments.values, *arguments.choices, *([RECIPE] if arguments.recipe else [])):
        if key in list_varied_keys(study):
            remedy = f"remove {key}, or change {key} in your own study file"
            raise RecipeError(key, f"the study {study.name} varies this key", remedy)
    check_recipe_words(list_varied_keys(study), file.name)
    request = _make_request(
        study, name, arguments, tuple(w for w in words if not w.startswith(MINE))
    )
    others = () if request.action == "report" else (SWEEP,)
    check_words(request.action, [*keys_of(arguments.words), *others])
    return request


def _make_request(
    study: SearchStudy | ListedStudy, given: str, arguments: Arguments, changed: tuple[str, ...]
) -> StudyRequest:
    own = [word for word in changed if not word.startswith(OVER)]
    if "cluster" not in arguments.choices:
        own.insert(0, f"cluster={study.cluster}")
    action = arguments.action
    if action == "auto":
        action = "submit" if is_submitted([own]) else "train"
    elif action not in {"plan", "train", "submit", "report"}:
        remedy = "write action=plan to compare plans, or remove action= to run the points"
        raise RecipeError("action", f"{action!r} does not work with a study", remedy)
    tried = study.model_dump(mode="json", exclude=NO_RUN_HAS)
    folder = folder_of_runs(arguments, named_after(study.name, json.dumps([tried, own])))
    page = arguments.file or Path(f"{study.name}.html")
    return StudyRequest(
        study, given, tuple(own), changed, action, arguments.output, folder, page
    )


def _put(tree: object, key: str, value: object) -> None:
    *before, last = key.removeprefix(OVER).split(".")
    for step in before:
        tree = tree.get(step) if isinstance(tree, dict) else None
    if not isinstance(tree, dict) or last not in tree:
        raise RecipeError(key, "the study has no such key", "see studies/")
    tree[last] = value
