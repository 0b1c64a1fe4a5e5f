"""Which words each action uses; any other is refused, because it would be ignored.

An action may be asked in several ways: ``train`` begins a run, and with ``resume=`` it goes on
with one. ``*`` stands for every key and group of a recipe, ``site.*`` for those below ``site``.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from components.config.targets import nearest
from components.errors import RecipeError

ANY = "*"
SWEEP, OF_STUDY = "-m", "study"  # of a whole command, not of one of its points
RECIPE = "recipe * within_days"
_PLACE = "data.folder"  # of a run that somebody else made: then the user has named it
_EVALUATED = f"at_tokens precision.compute output {_PLACE}"


@dataclass(frozen=True)
class Use:
    """One way to ask an action: the words that it uses, where ``given`` is among them.

    ``why`` says of a recipe's keys that it does not use why not.
    """

    words: str
    given: str = ""
    why: str = ""

    def takes(self, key: str) -> bool:
        """Tell whether a word of this key is used."""
        known = self.words.split()
        if key == self.given or key in known:
            return True
        parents = (key[:i] for i, letter in enumerate(key) if letter == ".")
        below = any(f"{parent}.*" in known for parent in parents)
        return below or (ANY in known and not is_own(key))

    @property
    def beside(self) -> str:
        """Say what makes it another way than the plain one."""
        named = {"": "", SWEEP: " under -m", OF_STUDY: " of a study"}
        return named.get(self.given, f" with {self.given}=")


def _of_run(what: str) -> str:
    return f"{what} takes its recipe from its run folder"


_OF_RECIPE = Use(RECIPE)
# Of the ways to ask an action, the first whose ``given`` is there is meant; the last has none.
USES: dict[str, tuple[Use, ...]] = {
    "auto": (),  # those of `train` or `submit`, which it becomes
    "show": (Use(f"{RECIPE} cite output"),),
    "plan": (
        Use(f"{RECIPE} at_most output", OF_STUDY),
        Use(f"{RECIPE} output", "calibrate"),
        Use(f"{RECIPE} file output"),
    ),
    "dryrun": (Use(f"{RECIPE} output"),),
    "parity": (Use(f"{RECIPE} layouts output"),),
    "prepare": (Use(f"{RECIPE} site.*"),),
    "render": (Use(f"{RECIPE} site.* run file"),),
    "submit": (
        Use(f"{RECIPE} site.* run force at_most output", OF_STUDY),
        Use(f"{RECIPE} site.* run again force at_most output", SWEEP),
        Use(f"{RECIPE} site.* run again force"),
    ),
    "status": (Use("run runs output"),),
    "cancel": (Use("run runs force"),),
    "stage": (Use(f"{RECIPE} site.* file run force"),),  # two are of the command that it prints
    "preflight": (
        Use(f"output {_PLACE}", "run", _of_run("a preflight of a run")),
        Use(f"{RECIPE} output"),
    ),
    "train": (
        Use(f"{RECIPE} site.* run at_most output", OF_STUDY),
        # Which keys may be others is told by `components.config.relayout`.
        Use(ANY, "resume", "a resumed run takes its recipe from its folder"),
        Use(f"{RECIPE} site.* run"),
    ),
    "report": (Use(f"{RECIPE} site.* run file", OF_STUDY), Use("run runs file")),
    "lock": (Use(f"file {_PLACE}", "run", _of_run("a lock of a run")), Use(f"{RECIPE} file")),
    "verify": (
        Use(f"file run {_PLACE} output", why="a lock is compared with what it was made of"),
    ),
    "diff": (Use("a b * within_days output", why="its recipes are a= and b="),),
    "pack": (Use(f"file {_PLACE}", "run", _of_run("a bundle of a run")), Use(f"{RECIPE} file")),
    "export": (Use(f"run file rows at_tokens {_PLACE}", why=_of_run("an export")),),
    "evaluate": (
        Use("tasks tasks_folder output", "file", "an exported folder has no recipe"),
        Use(f"run tasks_folder {_EVALUATED}", "tasks", _of_run("an evaluation")),
        Use(f"run {_EVALUATED}", "text", _of_run("an evaluation")),
        Use(
            f"run tasks_folder evaluation.max_windows_per_source {_EVALUATED}",
            why=_of_run("an evaluation"),
        ),
    ),
    "sync": (
        Use(
            "run runs to tracking tracking.*",
            why="a run that is sent takes its recipe from its folder",
        ),
    ),
}
ACTIONS = tuple(USES)
# A word with keys below it, as `tracking`, is a group of a recipe.
_OWN = frozenset(
    word
    for uses in USES.values()
    for use in uses
    for word in (use.given, *use.words.split())
    if word.isidentifier() and f"{word}.*" not in use.words
)


def is_own(key: str) -> bool:
    """Tell the command's own words, and the user's side of a cluster, from a recipe's keys."""
    return key in _OWN or key.startswith("site.")


def keys_of(words: Iterable[str]) -> list[str]:
    """Name what stands before each ``=``."""
    return [word.partition("=")[0] for word in words]


def check_words(action: str, keys: Collection[str]) -> None:
    """Refuse the first word that the action would ignore.

    Raises:
        RecipeError: there is one; with what the action takes, or the actions that take it.
    """
    if not USES[action]:
        return
    use = next(use for use in USES[action] if not use.given or use.given in keys)
    for key in keys:
        if key == "action" or use.takes(key):
            continue
        if is_own(key) and key != "recipe":
            problem = f"not used by action={action}{use.beside}"
            raise RecipeError(key, problem, _way_out(action, use, key))
        problem = use.why or f"action={action} composes no recipe"
        raise RecipeError(key, problem, _instead(action, use, key))


def check_recipe_words(keys: Iterable[str], where: str) -> None:
    """Refuse, where keys of a recipe may stand, the command's own words.

    Raises:
        RecipeError: there is one.
    """
    for key in keys:
        if not _OF_RECIPE.takes(key):
            problem = f"not used in {where}, where keys of a recipe may stand"
            raise RecipeError(key, problem, "leave it out")


def check_no_recipe(keys: Iterable[str], why: str) -> None:
    """Refuse keys of a recipe where an action that may compose one does not.

    Raises:
        RecipeError: there is one.
    """
    for key in keys:
        if key != "action" and _OF_RECIPE.takes(key):
            raise RecipeError(key, why, "leave it out")


def _way_out(action: str, use: Use, key: str) -> str:
    """Name another way to ask this action, or else the actions that take the word."""
    return _without(action, use, key) or f"leave it out; used by {_listed(_takers(key))}"


def _without(action: str, use: Use, key: str) -> str:
    others = [other for other in USES[action] if other is not use and other.takes(key)]
    return f"leave it out, or leave out {use.given}" if use.given and others else ""


def _takers(key: str) -> Iterator[str]:
    for action, uses in USES.items():
        taking = [use for use in uses if use.takes(key)]
        if any(use.given in {"", key} for use in taking):
            yield action
        else:
            yield from (f"{action}{use.beside}" for use in taking)


def _instead(action: str, use: Use, key: str) -> str:
    """Offer the word that was probably meant; else name the other way, or what is taken."""
    known = [word for word in (use.given, *use.words.split()) if word not in {"", ANY}]
    near = nearest(key, known)
    if near.startswith("did") and key != "recipe" and "." not in key:
        return near
    if way := _without(action, use, key):
        return way
    return f"leave it out; action={action}{use.beside} takes {_listed(known)}"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
