"""What a study's file says, with the user's words over it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from command.arguments import ROOT, Arguments, read_point
from command.files.yaml_file import read_data
from command.recipe.lock_file import check_recipe_place
from command.study.schema import RECIPE, TOKENIZER, ListedStudy, Point, SearchStudy, as_scalar
from command.study.study_file import check_study, varied
from command.study.sweep_points import STUDY, as_folder, folder_of_runs, named_after, submits
from command.words import OF_STUDY, check_recipe_words, check_words, keys_of
from components.config.schema.types import thaw
from components.config.suggestions import nearest
from components.errors import RecipeError

OVER = "study."  # keys of the study's own file
NO_RUN_HAS = {"search", "queue", "figure", "why", "columns", "measures"}
MINE = (STUDY, "run=", "action=", "output=", "at_most=", "file=")


@dataclass(frozen=True)
class StudyRequest:
    """A study as it is asked for: ``words`` of every point, ``changed`` from the file's."""

    study: SearchStudy | ListedStudy
    given: str  # what study= says
    words: tuple[str, ...]
    changed: tuple[str, ...]
    action: str
    output: str
    folder: Path
    page: Path

    def arguments_of(self, point: Point) -> Arguments:
        """Ask for a point as the command line would; a key that the user names is his."""
        named = {word.partition("=")[0] for word in self.words}
        values = {RECIPE: self.study.recipe, **self.study.values(point)}
        own = {key: thaw(value) for key, value in values.items() if key not in named}
        words = list(self.words)
        if RECIPE in own:
            recipe = check_recipe_place(str(own.pop(RECIPE)), f"{self.study.name}.recipe")
            words.append(f"{RECIPE}={recipe}")
        if TOKENIZER in own:
            words.append(f"{TOKENIZER}={own.pop(TOKENIZER)}")
        if self.action != "plan":
            words.append(f"run={self.folder_of(point)}")
        said = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        return replace(read_point(words), words=(*words, *said), file_values=own)

    def folder_of(self, point: Point) -> Path:
        """Name the keys in the study's order: a journal gives them back in another."""
        keys = varied(self.study)
        return self.folder / as_folder(f"{key}={as_scalar(point[key])}" for key in keys)


def ask(words: Sequence[str]) -> StudyRequest:
    """Read ``studies/NAME.yaml`` or the file that the words name, and what they change of it.

    Raises:
        RecipeError: the study, or a word beside it, is wrong.
    """
    (name,) = (word.partition("=")[2] for word in words if word.startswith(STUDY))
    file = Path(name).expanduser()
    if file.suffix != ".yaml":
        known = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
        if name not in known:
            raise RecipeError("study", f"there is no study {name!r}", nearest(name, known))
        file = ROOT / "studies" / f"{name}.yaml"
    tree = read_data(file, "study").tree
    arguments = read_point([w for w in words if not w.startswith((STUDY, OVER))])
    over = read_point([word for word in words if word.startswith(OVER)]).values
    if arguments.at_most is not None:
        over[f"study.{'search' if 'search' in tree else 'queue'}.at_once"] = arguments.at_most
    for key, value in over.items():
        _put(tree, key, value)
    study = check_study(tree, file.name)
    for key in (*arguments.values, *arguments.choices, *([RECIPE] if arguments.recipe else [])):
        if key in varied(study):
            remedy = f"leave {key} out, or change it in a file of your own"
            raise RecipeError(key, f"the study {study.name} varies it", remedy)
    check_recipe_words(varied(study), file.name)
    request = _make_request(
        study, name, arguments, tuple(w for w in words if not w.startswith(MINE))
    )
    check_words(request.action, [*keys_of(arguments.words), OF_STUDY])
    return request


def _make_request(
    study: SearchStudy | ListedStudy,
    given: str,
    arguments: Arguments,
    changed: tuple[str, ...],
) -> StudyRequest:
    own = [word for word in changed if not word.startswith(OVER)]
    if "cluster" not in arguments.choices:
        own.insert(0, f"cluster={study.cluster}")
    action = arguments.action
    if action == "auto":
        action = "submit" if submits([own]) else "train"
    elif action not in {"plan", "train", "submit", "report"}:
        remedy = "action=plan compares plans; without action= its points are run"
        raise RecipeError("action", f"{action!r} gives a study no figures", remedy)
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
        raise RecipeError(key, "the study's file has no such key", "see studies/")
    tree[last] = value
