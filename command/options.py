"""Options of the command line: each is declared once, as a field of `Options`.

From the declaration its words are read and explained (``--help``). A new option is a field
here, a word of the ways that take it (`command.words.WAYS`), and its use in the action.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from components.config.schema.children import Average
from components.config.suggestions import nearest
from components.errors import RecipeError

Reader = Callable[[str, Any], Any]
SITE = "site."


def read_text(key: str, text: str) -> str:
    """Take a word as it stands."""
    return text


def read_path(key: str, text: object) -> Path:
    """Read a path; ``~`` is the home.

    Raises:
        RecipeError: it is empty, or no path.
    """
    if not str(text):
        raise RecipeError(key, "no path is given", f"write {key}=FOLDER")
    if "\0" in str(text):
        raise RecipeError(key, f"{text!r} has a character that no path has", "name another")
    return Path(os.path.expanduser(str(text)))  # noqa: PTH111 (an unknown ~user stays as it is)


def one_of(*known: str) -> Reader:
    """Return a reader that takes one of these words."""

    def read(key: str, value: object) -> object:
        if value not in known:
            raise RecipeError(key, f"{value!r} is not known", nearest(str(value), known))
        return value

    return read


def _value(kind: Any, problem: str, remedy: str) -> Reader:
    """Return a reader of this kind of value, strictly; ``remedy`` may name its key."""
    adapter = TypeAdapter(kind, config=ConfigDict(strict=True))

    def read(key: str, value: object) -> object:
        try:
            return adapter.validate_python(value)
        except ValidationError:
            raise RecipeError(key, f"{value!r} {problem}", remedy.format(key=key)) from None

    return read


def _read_paths(key: str, value: object) -> tuple[Path, ...]:
    return tuple(read_path(key, item) for item in _list(value))


def _read_names(key: str, value: object) -> tuple[str, ...]:
    names = tuple(str(item) for item in _list(value))
    if not names:
        raise RecipeError(key, "no task is named", f"write {key}=[NAME]")
    return names


def _read_layouts(key: str, value: object) -> tuple[dict[str, Any], ...]:
    """Read a list of mappings of ``parallelism.*`` keys; one mapping alone will do."""
    for layout in _list(value):
        if not isinstance(layout, dict):
            remedy = "write layouts=[{data: 2, tensor: 2}, {pipeline: 3}]"
            raise RecipeError(key, f"{layout!r} is no mapping of degrees", remedy)
    return tuple(_list(value))


def _read_parameters(key: str, value: object) -> int:
    """Read a number, or one with a letter: 125M, 1.3B.

    Raises:
        RecipeError: it is none, or not positive.
    """
    number, letter = (str(value)[:-1], str(value)[-1:].lower()) if value else ("", "")
    factor = {"k": 1e3, "m": 1e6, "b": 1e9}.get(letter)
    try:
        count = round(float(number) * factor) if factor else round(float(str(value)))
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        remedy = f"write {key}=125M, {key}=1.3B or {key}=350_000"
        raise RecipeError(key, f"{value!r} is no number of parameters", remedy)
    return count


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


_AS_NAMED = "write them as in a checkpoint's name, or leave it out for the newest"
_OTHER_TRAINERS = (
    "write {key}=torchtitan; action=export writes a Hugging Face folder, whose config.json "
    "Megatron-Bridge reads"
)
_NO_LIMIT = "is no number of runs that may be queued at a time"
_NO_RANKS = "is no number of ranks"
_NO_COUNT = "is no number of checkpoints"
_NO_DAYS = "is no positive number of days"
Text = Annotated[str | None, read_text]
File = Annotated[Path | None, read_path]
Files = Annotated[tuple[Path, ...], _read_paths]
Names = Annotated[tuple[str, ...], _read_names]
Layouts = Annotated[tuple[dict[str, Any], ...], _read_layouts]
Rows = Annotated[Literal["published", "padded"], one_of("published", "padded")]
Checkpoints = Annotated[Literal["newest", "all"], one_of("newest", "all")]
Exclude = Annotated[Literal["none"] | None, one_of("none")]
Executor = Annotated[Literal["local", "array"], one_of("local", "array")]
Part = Annotated[float, Field(gt=0, lt=1)]
Averaged = Annotated[Average, one_of(*get_args(Average))]
Trainer = Literal["torchtitan"] | None
Engine = Annotated[Trainer, _value(Trainer, "is not known", _OTHER_TRAINERS)]
Output = Annotated[Literal["text", "json"], one_of("text", "json")]
Proved = Annotated[Literal["layouts", "coordinates"], one_of("layouts", "coordinates")]
Flag = Annotated[bool, _value(bool, "is neither true nor false", "write {key}=true")]
Parameters = Annotated[int | None, _read_parameters]
Tokens = Annotated[int | None, _value(int | None, "is no number of tokens", _AS_NAMED)]
Limit = Annotated[int | None, _value(PositiveInt | None, _NO_LIMIT, "write {key}=4")]
Ranks = Annotated[int | None, _value(PositiveInt | None, _NO_RANKS, "write {key}=2")]
Count = Annotated[int | None, _value(PositiveInt | None, _NO_COUNT, "write {key}=4")]
Kept = Annotated[float | None, _value(Part | None, "is no part of 1", "write {key}=0.8")]
Days = Annotated[float | None, _value(PositiveFloat | None, _NO_DAYS, "write {key}=30")]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the words give, else the defaults: type, reader and line of ``--help`` of each."""

    recipe: Annotated[Text, "what is trained: a name, or a file"] = None
    like: Annotated[Text, "new: a recipe to vary, or a folder of Hugging Face"] = None
    column: Annotated[Text, "the field of the records of data= that holds the text"] = None
    weights: Annotated[Flag, "begin with the weights of the folder like="] = False
    parameters: Annotated[Parameters, "about so many, of a new recipe: 125M"] = None
    a: Annotated[File, "a recipe, lock, bundle or run to compare"] = None
    b: Annotated[File, "what a= is compared with"] = None
    within_days: Annotated[Days, "days of a run whose nodes parallelism=auto finds, too"] = None
    run: Annotated[File, "the folder of a run"] = None
    runs: Annotated[Files, "folders of runs"] = ()
    resume: Annotated[File, "the run folder to go on with"] = None
    file: Annotated[File, "what is written; verify: the lock; evaluate: an exported folder"] = (
        None
    )
    engine: Annotated[Engine, "another trainer whose configuration is written: torchtitan"] = (
        None
    )
    text: Annotated[File, "a text to judge, or a pattern"] = None
    tasks: Annotated[Names, "a list, as mula9, or tasks of lm-eval: [NAME,...]"] = ()
    tasks_folder: Annotated[File, "a folder of own tasks, or of staged lists"] = None
    executor: Annotated[Executor, "array: evaluate in jobs of the run's cluster"] = "local"
    ranks: Annotated[Ranks, "that share the questions, else one a device"] = None
    checkpoints: Annotated[Checkpoints, "all: evaluate each that is kept"] = "newest"
    rows: Annotated[Rows, "of the embedding: published, padded"] = "published"
    at_tokens: Annotated[Tokens, "the checkpoint after so many tokens, else the newest"] = None
    fresh_optimizer: Annotated[Flag, "begin with moments of 0; weights alone will do"] = False
    last: Annotated[Count, "so many kept checkpoints become one, the newest at_tokens"] = None
    average: Annotated[Averaged, "their parts: one mean, or a decay that was not run"] = (
        "uniform"
    )
    ema_decay: Annotated[Kept, "what average=ema keeps of itself at each checkpoint"] = None
    to: Annotated[Text, "the URL of a server of MLflow"] = None
    calibrate: Annotated[Files, "runs, or tables of steps"] = ()
    stage: Annotated[Flag, "collect all that a machine without internet needs"] = False
    exclude: Annotated[Exclude, "none: use again the nodes that failed jobs excluded"] = None
    sync: Annotated[Flag, "send the measurements of runs to their trackers"] = False
    layouts: Annotated[Layouts, "layouts to prove: [{data: 2, tensor: 2},...]"] = ()
    kind: Annotated[Proved, "of proof: layouts, or coordinates by width"] = "layouts"
    full: Annotated[Flag, "print the whole recipe, every key"] = False
    cite: Annotated[Flag, "print the BibTeX of the works alone"] = False
    again: Annotated[Flag, "submit a run again whose chain has ended"] = False
    force: Annotated[Flag, "submit what does not fit; cancel: end jobs unsaved"] = False
    at_most: Annotated[Limit, "runs queued at a time"] = None
    output: Annotated[Output, "text, or one JSON object: json"] = "text"
    study: Annotated[Text, "with -m: the points of a study; else a ladder that is read"] = None


def choices_of(option: str) -> tuple[str, ...]:
    """List the words that an option takes, where it takes no others."""
    hint = get_type_hints(Options).get(option)
    if hint is bool:
        return ("false", "true")
    kinds = (hint, *get_args(hint))  # the second of those that may be left out
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


_DECLARED = {
    name: hint.__metadata__
    for name, hint in get_type_hints(Options, include_extras=True).items()
}
READERS: dict[str, Reader] = {name: read for name, (read, _) in _DECLARED.items()}
OPTIONS: dict[str, str] = {
    **{name: explained for name, (_, explained) in _DECLARED.items()},
    f"{SITE}*": "your own side of a cluster, as site.account",
}
# Taken as they stand: a URL is no YAML, and a path may hold signs of Hydra's grammar.
RAW_KEYS = {name for name, read in READERS.items() if read in {read_text, read_path}}
