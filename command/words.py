"""Which words each action uses; any other is refused, because it would be ignored."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from command.options import OPTIONS, SITE
from components.config.suggestions import nearest
from components.errors import RecipeError

ANY = "*"  # every key and group of a recipe
SWEEP, OF_STUDY = "-m", "-m study"  # of a whole command, not of one of its points
_PLACE = "data.folder"  # of a run that somebody else made: then the user has named it
_JUDGED = f"precision.compute cluster.hours {_PLACE}"
_JUDGED_HELD_OUT = f"evaluation.max_windows_per_source {_JUDGED}"
_TASKS = "tasks tasks_folder ranks"
_JOBS = "executor site.*"  # jobs of its own for each checkpoint


@dataclass(frozen=True)
class Way:
    """One way to ask an action, meant where ``given`` is among the words.

    ``options`` are the command's own words that it takes, ``keys`` those of a recipe; ``why``
    says of others why not. ``train`` begins a run, and with ``resume=`` it goes on with one.
    """

    action: str
    options: str
    given: str = ""
    keys: str = ANY
    why: str = ""

    def takes(self, key: str) -> bool:
        """Return whether a word of this key is used."""
        patterns = self.options if is_own(key) else self.keys
        return key == self.given or any(fnmatchcase(key, one) for one in patterns.split())

    @property
    def known(self) -> list[str]:
        """List what it takes, first what makes it this way."""
        words = dict.fromkeys([self.given, *self.options.split(), *self.keys.split()])
        return [word for word in words if word not in {"", ANY}]

    @property
    def beside(self) -> str:
        """Describe what makes it another way than the plain one."""
        named = {"": "", SWEEP: " under -m", OF_STUDY: " of a study"}
        return named.get(self.given, f" with {self.given}=")


_FROM_RUN = "takes its recipe from its run folder"
_EVALUATED = f"an evaluation {_FROM_RUN}"
_RESUMED = "a resumed run takes its recipe from its folder"
_SENT = "a run that is sent takes its recipe from its folder"
_RESUME = "resume at_tokens fresh_optimizer"
_RECIPE = "recipe within_days"  # where one is composed
# Of what writes a recipe: ``data`` is files and ``tokenizer`` a folder, no options of conf/.
_OWN = "name data tokenizer"
_SAID_ITSELF = "a new recipe says the rest itself"
# Of the ways to ask an action, the first whose ``given`` is there is meant; the last has none.
WAYS = (
    Way("new", "column like weights parameters file", "", _OWN, _SAID_ITSELF),
    Way("show", f"{_RECIPE} cite output", "cite"),
    Way("show", f"{_RECIPE} full output"),
    Way("plan", f"{_RECIPE} at_most output study", OF_STUDY),
    Way("plan", f"{_RECIPE} calibrate output", "calibrate"),
    Way("plan", f"{_RECIPE} run file output study", "study"),
    Way("plan", f"{_RECIPE} file output"),
    Way("dryrun", f"{_RECIPE} output"),
    Way("parity", f"{_RECIPE} kind output", "kind"),
    Way("parity", f"{_RECIPE} layouts output"),
    Way("prepare", f"{_RECIPE} stage run file tasks force site.*", "stage"),
    Way("prepare", f"{_RECIPE} tasks site.*"),
    Way("render", f"{_RECIPE} run file site.*"),
    Way("submit", f"{_RECIPE} run force at_most output study site.*", OF_STUDY),
    Way("submit", f"{_RESUME} again force site.*", "resume", why=_RESUMED),
    Way("submit", f"{_RECIPE} run again force at_most output site.*", SWEEP),
    Way("submit", f"{_RECIPE} run again force site.*"),
    Way("status", "run runs exclude", "exclude", keys=""),
    Way("status", "run runs output", keys=""),
    Way("cancel", "run runs force", keys=""),
    Way("preflight", "run output", "run", _PLACE, f"a preflight of a run {_FROM_RUN}"),
    Way("preflight", f"{_RECIPE} output"),
    Way("train", f"{_RECIPE} run at_most output study site.*", OF_STUDY),
    # Which keys may be others is told by `components.config.resolve`.
    Way("train", _RESUME, "resume", why=_RESUMED),
    Way("train", f"{_RECIPE} run site.*"),
    Way(
        "merge",
        "run at_tokens last average ema_decay file",
        "",
        _PLACE,
        f"a merge {_FROM_RUN}",
    ),
    Way("report", f"{_RECIPE} run file study site.*", OF_STUDY),
    Way("report", "run runs sync to", "sync", "tracking tracking.*", _SENT),
    Way("report", "run runs file", keys=""),
    Way("verify", "run file output", "", _PLACE, "a lock is compared with what it was made of"),
    Way("diff", "a b within_days output", why="its recipes are a= and b="),
    Way("pack", "run file", "run", _PLACE, f"a bundle of a run {_FROM_RUN}"),
    Way("pack", f"{_RECIPE} file"),
    Way("export", f"{_RECIPE} engine file", "engine"),
    Way("export", "run file rows at_tokens", "", _PLACE, f"an export {_FROM_RUN}"),
    Way("evaluate", f"file {_TASKS} output", "file", "", "an exported folder has no recipe"),
    Way(
        "evaluate",
        f"run checkpoints text {_TASKS} {_JOBS} output",
        "checkpoints",
        _JUDGED_HELD_OUT,
        _EVALUATED,
    ),
    Way("evaluate", f"run {_TASKS} at_tokens {_JOBS} output", "tasks", _JUDGED, _EVALUATED),
    Way("evaluate", f"run text at_tokens {_JOBS} output", "text", _JUDGED, _EVALUATED),
    Way(
        "evaluate",
        f"run tasks_folder at_tokens {_JOBS} output",
        "",
        _JUDGED_HELD_OUT,
        _EVALUATED,
    ),
)
ACTIONS = tuple(dict.fromkeys(way.action for way in WAYS))
# What acts on a cluster and its jobs has a room of its own, `command.actions.jobs`.
OF_JOBS = ("render", "submit", "status", "cancel", "preflight")

# Actions of earlier versions, and how each is written now.
RENAMED = {
    "rewind": "resume=RUN at_tokens=N, with fresh_optimizer=true where it had that",
    "import": "action=new like=FOLDER",
    "predict": "action=plan study=ladder",
    "propose": "action=plan file=proposal.md",
    "emit": "action=export engine=torchtitan",
    "readmit": "action=status exclude=none",
    "stage": "action=prepare stage=true",
    "sync": "action=report sync=true",
    "lock": "action=pack file=NAME.lock.yaml",
}


def check_renamed(words: Iterable[str]) -> None:
    """Refuse an action of an earlier version.

    Raises:
        RecipeError: there is one; with the command that does its work now.
    """
    for key, _, value in (word.partition("=") for word in words):
        if key in {"action", "help"} and value in RENAMED:
            problem = f"{value!r} is another command now"
            raise RecipeError(key, problem, f"write {RENAMED[value]}")


def is_own(key: str) -> bool:
    """Tell the command's own words, and the user's side of a cluster, from a recipe's keys."""
    return key in OPTIONS or key.startswith(SITE)


def keys_of(words: Iterable[str]) -> list[str]:
    """Name what stands before each ``=``."""
    return [word.partition("=")[0] for word in words]


def check_words(action: str, keys: Collection[str]) -> None:
    """Refuse the first word that the action would ignore.

    Raises:
        RecipeError: there is one; with what the action takes, or the actions that take it.
    """
    ways = [way for way in WAYS if way.action == action]
    meant = next(way for way in ways if not way.given or way.given in keys)
    asked = f"action={action}{meant.beside}"
    for key in keys:
        if key == "action" or meant.takes(key):
            continue
        elsewhere = meant.given and any(way.takes(key) for way in ways if way is not meant)
        other = f"leave it out, or leave out {meant.given}" if elsewhere else ""
        if is_own(key) and key != "recipe":
            remedy = other or f"leave it out; used by {_listed(_takers(key))}"
            raise RecipeError(key, f"not used by {asked}", remedy)
        remedy = nearest(key, meant.known)  # the word that was probably meant
        if not remedy.startswith("did") or key == "recipe" or "." in key:
            remedy = other or f"leave it out; {asked} takes {_listed(meant.known)}"
        raise RecipeError(key, meant.why or f"action={action} composes no recipe", remedy)


def _takers(key: str) -> Iterator[str]:
    """Name the actions that take the word, or only some of their ways."""
    for action in ACTIONS:
        taking = [way for way in WAYS if way.action == action and way.takes(key)]
        if any(way.given in {"", key} for way in taking):
            yield action
        else:
            yield from (f"{action}{way.beside}" for way in taking)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def check_recipe_words(keys: Iterable[str], where: str) -> None:
    """Refuse, where keys of a recipe may stand, the command's own words.

    Raises:
        RecipeError: there is one.
    """
    for key in keys:
        if not _takes_recipe(key):
            problem = f"not used in {where}, where keys of a recipe may stand"
            raise RecipeError(key, problem, "leave it out")


def check_no_recipe(keys: Iterable[str], why: str) -> None:
    """Refuse keys of a recipe where an action that may compose one does not.

    Raises:
        RecipeError: there is one.
    """
    for key in keys:
        if key != "action" and _takes_recipe(key):
            raise RecipeError(key, why, "leave it out")


def _takes_recipe(key: str) -> bool:
    return key in {"recipe", "within_days"} or not is_own(key)
