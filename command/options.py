"""Options of the command line: each is a field of `Options`.

The field's type defines how its value is read and checked; its text is the ``--help`` line. A
new option also needs its name in the ways that take it (`command.words.ACTION_FORMS`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field, PositiveFloat, PositiveInt

from components.config.schema.children import Average
from components.config.validation import read_value
from components.errors import RecipeError

SITE = "site."


def read_path(key: str, text: object) -> Path:
    """Read a path and expand ``~``; RecipeError if the path is empty or invalid."""
    if not str(text):
        raise RecipeError(key, "the path is empty", f"write {key}=FOLDER")
    if "\0" in str(text):
        raise RecipeError(key, f"{text!r} contains a null character", "remove it")
    return Path(os.path.expanduser(str(text)))  # noqa: PTH111 (an unknown ~user stays as it is)


def _read_paths(key: str, value: object) -> tuple[Path, ...]:
    return tuple(read_path(key, item) for item in _list(value))


def _read_names(key: str, value: object) -> tuple[str, ...]:
    names = tuple(str(item) for item in _list(value))
    if not names:
        raise RecipeError(key, "the task list is empty", f"write {key}=[NAME]")
    return names


def _read_layouts(key: str, value: object) -> tuple[dict[str, Any], ...]:
    return tuple(read_value(list[dict[str, Any]], _list(value), key))


def _read_parameters(key: str, value: object) -> int:
    """Read a count of parameters, with an optional letter: 125M, 1.3B."""
    number, letter = (str(value)[:-1], str(value)[-1:].lower()) if value else ("", "")
    factor = {"k": 1e3, "m": 1e6, "b": 1e9}.get(letter)
    try:
        count = round(float(number) * factor) if factor else round(float(str(value)))
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        remedy = f"write {key}=125M, {key}=1.3B or {key}=350_000"
        raise RecipeError(key, f"expected a number of parameters, got {value!r}", remedy)
    return count


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


OptionalText = str | None
OptionalPath = Path | None
PathList = tuple[Path, ...]
NameList = tuple[str, ...]
Mappings = tuple[dict[str, Any], ...]
OptionalCount = PositiveInt | None
Days = PositiveFloat | None
OptionalFraction = Annotated[float, Field(gt=0, lt=1)] | None
Trainer = Literal["torchtitan"] | None
Rows = Literal["published", "padded"]
Checkpoints = Literal["newest", "all"]
Exclude = Literal["none"] | None
Executor = Literal["local", "array"]
Output = Literal["text", "json"]
Proof = Literal["layouts", "coordinates"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Option values from the words, or defaults; each with its type and its ``--help`` line."""

    recipe: Annotated[OptionalText, "the recipe to use: a name, or a file"] = None
    like: Annotated[OptionalText, "new: a recipe to vary, or a Hugging Face folder"] = None
    column: Annotated[OptionalText, "the text field of the records in data="] = None
    weights: Annotated[bool, "start from the weights in the folder of like="] = False
    parameters: Annotated[int | None, "approximate size of a new recipe: 125M"] = None
    a: Annotated[OptionalPath, "the first recipe, lock, bundle or run to compare"] = None
    b: Annotated[OptionalPath, "the second recipe, lock, bundle or run to compare"] = None
    within_days: Annotated[Days, "longest run; parallelism=auto also finds the nodes"] = None
    run: Annotated[OptionalPath, "the folder of a run"] = None
    runs: Annotated[PathList, "folders of runs"] = ()
    resume: Annotated[OptionalPath, "the run folder to resume"] = None
    file: Annotated[
        OptionalPath, "the output; verify: the lock; evaluate: an exported folder"
    ] = None
    engine: Annotated[Trainer, "the trainer to write a configuration for: torchtitan"] = None
    text: Annotated[OptionalPath, "a text file to evaluate, or a pattern"] = None
    tasks: Annotated[NameList, "a task list such as mula9, or lm-eval tasks: [NAME,...]"] = ()
    tasks_folder: Annotated[OptionalPath, "a folder with task files or staged lists"] = None
    executor: Annotated[Executor, "array: evaluate in jobs of the run's cluster"] = "local"
    ranks: Annotated[
        OptionalCount, "number of evaluating processes; default: one per device"
    ] = None
    checkpoints: Annotated[Checkpoints, "all: evaluate every saved checkpoint"] = "newest"
    rows: Annotated[Rows, "rows of the embedding: published, padded"] = "published"
    at_tokens: Annotated[int | None, "token count of the checkpoint; default: the newest"] = (
        None
    )
    fresh_optimizer: Annotated[bool, "reset the moments to 0; needs only weights"] = False
    last: Annotated[OptionalCount, "number of checkpoints to average, the newest at_tokens"] = (
        None
    )
    average: Annotated[Average, "averaging weights: equal, or a simulated decay"] = "uniform"
    ema_decay: Annotated[OptionalFraction, "decay of average=ema at each checkpoint"] = None
    to: Annotated[OptionalText, "URL of an MLflow server"] = None
    calibrate: Annotated[PathList, "run folders with measured layouts, or a card.json"] = ()
    card: Annotated[bool, "measure this machine in a short run, and write card.json"] = False
    stage: Annotated[bool, "collect everything that a machine without internet needs"] = False
    exclude: Annotated[Exclude, "none: allow the nodes that failed jobs excluded"] = None
    sync: Annotated[bool, "send the measurements of runs to their trackers"] = False
    layouts: Annotated[Mappings, "layouts to prove: [{data: 2, tensor: 2},...]"] = ()
    kind: Annotated[Proof, "proof of layouts, or of coordinates by width"] = "layouts"
    full: Annotated[bool, "print every key of the recipe"] = False
    cite: Annotated[bool, "print only the BibTeX of the citations"] = False
    again: Annotated[bool, "submit a run again after its chain has ended"] = False
    force: Annotated[bool, "submit a plan that does not fit; cancel: do not save first"] = False
    at_most: Annotated[OptionalCount, "maximum number of queued runs"] = None
    output: Annotated[Output, "text, or one JSON object: json"] = "text"
    study: Annotated[OptionalText, "with -m: run a study; else read a ladder"] = None


TYPES = get_type_hints(Options)
_DECLARED = get_type_hints(Options, include_extras=True)
OPTIONS: dict[str, str] = {
    **{name: hint.__metadata__[-1] for name, hint in _DECLARED.items()},
    f"{SITE}*": "your settings for a cluster, such as site.account",
}
# Kept as raw text: a URL is not YAML, and a path may contain signs of Hydra's grammar.
RAW_KEYS = {name for name, kind in TYPES.items() if kind in {OptionalText, OptionalPath}}
_READERS: dict[Any, Callable[[str, Any], object]] = {
    OptionalText: lambda name, value: value,
    OptionalPath: read_path,
    PathList: _read_paths,
    NameList: _read_names,
    Mappings: _read_layouts,
}


def read_option(name: str, value: object) -> object:
    """Read the value of an option according to the type of its field."""
    if name == "parameters":
        return _read_parameters(name, value)
    if (read := _READERS.get(TYPES[name])) is not None:
        return read(name, value)
    return read_value(_DECLARED[name], value, name)


def choices_of(option: str) -> tuple[str, ...]:
    """List the values of an option that takes only fixed words, else nothing."""
    hint = TYPES.get(option)
    if hint is bool:
        return ("false", "true")
    kinds = (hint, *get_args(hint))  # also the members of an optional type
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
