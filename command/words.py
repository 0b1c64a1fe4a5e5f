"""Which words each action uses; any other is refused, because it would be ignored."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from command.options import OPTIONS, SITE
from components.config.targets import nearest
from components.errors import RecipeError

ANY = "*"  # every key and group of a recipe
SWEEP, OF_STUDY = "-m", "study"  # of a whole command, not of one of its points
_PLACE = "data.folder"  # of a run that somebody else made: then the user has named it
_JUDGED = f"precision.compute {_PLACE}"


@dataclass(frozen=True)
class Way:
    """One way to ask an action, meant where ``given`` is among the words.

    ``keys`` are those of a recipe that it uses, ``why`` says of others why not. Its options are
    those that name it (`command.options`): ``train`` begins a run, and with ``resume=`` it goes
    on with one.
    """

    action: str
    given: str = ""
    keys: str = ANY
    why: str = ""

    def takes(self, key: str) -> bool:
        """Return whether a word of this key is used."""
        if is_own(key):
            own = f"{SITE}*" if key.startswith(SITE) else key
            return key == self.given or self._uses(own)
        return key == self.given or any(fnmatchcase(key, one) for one in self.keys.split())

    def _uses(self, option: str) -> bool:
        names = {self.action, f"{self.action}/{self.given or 'plain'}"}
        return not names.isdisjoint(OPTIONS[option].used_by.split())

    @property
    def known(self) -> list[str]:
        """List what it takes, first what makes it this way."""
        options = [name for name in OPTIONS if self._uses(name)]
        words = dict.fromkeys([self.given, *options, *self.keys.split()])
        return [word for word in words if word not in {"", ANY}]

    @property
    def beside(self) -> str:
        """Describe what makes it another way than the plain one."""
        named = {"": "", SWEEP: " under -m", OF_STUDY: " of a study"}
        return named.get(self.given, f" with {self.given}=")


def _of_run(what: str) -> str:
    return f"{what} takes its recipe from its run folder"


_EVALUATED = _of_run("an evaluation")
# Of the ways to ask an action, the first whose ``given`` is there is meant; the last has none.
WAYS = (
    Way("show"),
    Way("plan", OF_STUDY),
    Way("plan", "calibrate"),
    Way("plan"),
    Way("dryrun"),
    Way("parity"),
    Way("prepare"),
    Way("render"),
    Way("submit", OF_STUDY),
    Way("submit", SWEEP),
    Way("submit"),
    Way("status", keys=""),
    Way("cancel", keys=""),
    Way("stage"),
    Way("preflight", "run", _PLACE, _of_run("a preflight of a run")),
    Way("preflight"),
    Way("train", OF_STUDY),
    # Which keys may be others is told by `components.config.resolve`.
    Way("train", "resume", why="a resumed run takes its recipe from its folder"),
    Way("train"),
    Way("report", OF_STUDY),
    Way("report", keys=""),
    Way("lock", "run", _PLACE, _of_run("a lock of a run")),
    Way("lock"),
    Way("verify", keys=_PLACE, why="a lock is compared with what it was made of"),
    Way("diff", why="its recipes are a= and b="),
    Way("pack", "run", _PLACE, _of_run("a bundle of a run")),
    Way("pack"),
    Way("export", keys=_PLACE, why=_of_run("an export")),
    Way("evaluate", "file", "", "an exported folder has no recipe"),
    Way("evaluate", "tasks", _JUDGED, _EVALUATED),
    Way("evaluate", "text", _JUDGED, _EVALUATED),
    Way("evaluate", "", f"evaluation.max_windows_per_source {_JUDGED}", _EVALUATED),
    Way(
        "sync", "", "tracking tracking.*", "a run that is sent takes its recipe from its folder"
    ),
)
# `auto` has no ways of its own but those of `train` or `submit`, which it becomes.
ACTIONS = ("auto", *dict.fromkeys(way.action for way in WAYS))


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
    if action == "auto":
        return
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
