"""The words that each action uses. Any other word is refused, because it would be ignored."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from command.options import OPTIONS, SITE
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

ANY = "*"  # every key and group of a recipe
SWEEP = "-m"  # applies to a whole command, not to one of its points
_PLACE = "data.folder"  # of another user's run: named again by this user
_JUDGED = f"precision.compute cluster.hours {_PLACE}"
_JUDGED_HELD_OUT = f"evaluation.max_windows_per_source {_JUDGED}"
_TASKS = "tasks tasks_folder ranks"
_JOBS = "executor site.*"  # separate jobs for each checkpoint


@dataclass(frozen=True)
class ActionForm:
    """One variant of an action, selected if ``given`` is among the words.

    ``options`` are the command options that it takes, ``keys`` the keys of a recipe; ``why`` is
    the reason for refusing other keys. ``train`` starts or, with ``resume=``, continues a run.
    """

    action: str
    options: str
    given: str = ""
    keys: str = ANY
    why: str = ""

    def uses_key(self, key: str) -> bool:
        """Return whether this variant uses a key."""
        patterns = self.options if is_own(key) else self.keys
        return key == self.given or any(
            fnmatchcase(key, pattern) for pattern in patterns.split()
        )

    @property
    def accepted_words(self) -> list[str]:
        """List the accepted words, starting with ``given``."""
        words = dict.fromkeys([self.given, *self.options.split(), *self.keys.split()])
        return [word for word in words if word not in {"", ANY}]

    @property
    def condition_text(self) -> str:
        """Describe how this variant differs from the action's plain variant."""
        named = {"": "", SWEEP: " under -m"}
        return named.get(self.given, f" with {self.given}=")


_FROM_RUN = "reads its recipe from its run folder"
_EVALUATED = f"an evaluation {_FROM_RUN}"
_RESUMED = "a resumed run reads its recipe from its folder"
_SENT = "sync=true reads the recipe from the run folder"
_RESUME = "resume at_tokens fresh_optimizer"
_RECIPE = "recipe within_days"  # for variants that compose a recipe
# For a new recipe, ``data`` is files and ``tokenizer`` a folder, not options of conf/.
_OWN = "name data tokenizer"
_NEW_RECIPE = "action=new does not accept recipe keys"
# The first variant whose ``given`` is among the words applies. The last has no ``given``.
ACTION_FORMS = (
    ActionForm("new", "column like weights parameters file", "", _OWN, _NEW_RECIPE),
    ActionForm("show", f"{_RECIPE} cite output", "cite"),
    ActionForm("show", f"{_RECIPE} full output"),
    ActionForm("plan", f"{_RECIPE} at_most output study", SWEEP),
    ActionForm("plan", f"{_RECIPE} calibrate output", "calibrate"),
    ActionForm("plan", f"{_RECIPE} run file output study", "study"),
    ActionForm("plan", f"{_RECIPE} file output"),
    ActionForm("dryrun", f"{_RECIPE} output"),
    ActionForm("parity", f"{_RECIPE} kind output", "kind"),
    ActionForm("parity", f"{_RECIPE} layouts output"),
    ActionForm("prepare", f"{_RECIPE} stage run file tasks force site.*", "stage"),
    ActionForm("prepare", f"{_RECIPE} tasks site.*"),
    ActionForm("render", f"{_RECIPE} run file site.*"),
    ActionForm("submit", f"{_RESUME} again force site.*", "resume", why=_RESUMED),
    ActionForm("submit", f"{_RECIPE} run again force at_most output study site.*", SWEEP),
    ActionForm("submit", f"{_RECIPE} run card again force site.*"),
    ActionForm("status", "run runs exclude", "exclude", keys=""),
    ActionForm("status", "run runs output", keys=""),
    ActionForm("cancel", "run runs force", keys=""),
    ActionForm("preflight", "run output", "run", _PLACE, f"a preflight of a run {_FROM_RUN}"),
    ActionForm("preflight", f"{_RECIPE} output"),
    ActionForm("train", f"{_RECIPE} run at_most output study site.*", SWEEP),
    # `components.config.resolve` decides which keys may change.
    ActionForm("train", _RESUME, "resume", why=_RESUMED),
    ActionForm("train", f"{_RECIPE} run card site.*"),
    ActionForm(
        "merge", "run at_tokens last average ema_decay file", "", _PLACE, f"a merge {_FROM_RUN}"
    ),
    ActionForm("report", f"{_RECIPE} run file study site.*", "study"),
    ActionForm("report", f"{_RECIPE} run file site.*", SWEEP),
    ActionForm("report", "run runs sync to", "sync", "tracking tracking.*", _SENT),
    ActionForm("report", "run runs file", keys=""),
    ActionForm(
        "verify", "run file output", "", _PLACE, "action=verify reads the recipe from the lock"
    ),
    ActionForm("diff", "a b within_days output", why="the recipes are a= and b="),
    ActionForm("pack", "run file", "run", _PLACE, f"a bundle of a run {_FROM_RUN}"),
    ActionForm("pack", f"{_RECIPE} file"),
    ActionForm("export", f"{_RECIPE} engine file", "engine"),
    ActionForm("export", "run file rows at_tokens", "", _PLACE, f"an export {_FROM_RUN}"),
    ActionForm(
        "evaluate", f"file {_TASKS} output", "file", "", "an exported folder has no recipe"
    ),
    ActionForm(
        "evaluate",
        f"run checkpoints text {_TASKS} {_JOBS} output",
        "checkpoints",
        _JUDGED_HELD_OUT,
        _EVALUATED,
    ),
    ActionForm(
        "evaluate", f"run {_TASKS} at_tokens {_JOBS} output", "tasks", _JUDGED, _EVALUATED
    ),
    ActionForm("evaluate", f"run text at_tokens {_JOBS} output", "text", _JUDGED, _EVALUATED),
    ActionForm(
        "evaluate",
        f"run tasks_folder at_tokens {_JOBS} output",
        "",
        _JUDGED_HELD_OUT,
        _EVALUATED,
    ),
)
ACTIONS = tuple(dict.fromkeys(form.action for form in ACTION_FORMS))
# Actions on clusters and jobs are in their own package, `command.actions.jobs`.
OF_JOBS = ("render", "submit", "status", "cancel", "preflight")

# Actions of earlier versions, and their present form.
RENAMED = {
    "rewind": "resume=RUN at_tokens=N, with fresh_optimizer=true if it was set",
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
    """Refuse an action of an earlier version, with the command that replaces it."""
    for key, _, value in (word.partition("=") for word in words):
        if key in {"action", "help"} and value in RENAMED:
            problem = f"{value!r} has been replaced"
            raise RecipeError(key, problem, f"write {RENAMED[value]}")


def is_own(key: str) -> bool:
    """Return whether a key is an option or a site setting, not a key of a recipe."""
    return key in OPTIONS or key.startswith(SITE)


def keys_of(words: Iterable[str]) -> list[str]:
    """Return the key before ``=`` of each word."""
    return [word.partition("=")[0] for word in words]


def check_words(action: str, keys: Collection[str]) -> None:
    """Refuse the first word that the action would ignore; suggest words or actions."""
    forms = [form for form in ACTION_FORMS if form.action == action]
    meant = next(form for form in forms if not form.given or form.given in keys)
    described = f"action={action}{meant.condition_text}"
    for key in keys:
        if key == "action" or meant.uses_key(key):
            continue
        if is_own(key) and key != "recipe":
            users = dict.fromkeys(
                # Another variant of this action may use the key.
                form.action + (form.condition_text if form.action == action else "")
                for form in ACTION_FORMS
                if form.uses_key(key)
            )
            fix = f"remove {key}; used by {', '.join(users)}"
            raise RecipeError(key, f"not used by {described}", fix)
        problem = meant.why or f"action={action} does not accept recipe keys"
        raise RecipeError(key, problem, suggest_similar(key, meant.accepted_words))


def check_recipe_words(keys: Iterable[str], where: str) -> None:
    """Refuse the command's own options where only keys of a recipe are allowed."""
    for key in keys:
        if not _takes_recipe(key):
            problem = f"{where} accepts only recipe keys"
            raise RecipeError(key, problem, f"remove {key}")


def check_no_recipe(keys: Iterable[str], why: str) -> None:
    """Refuse keys of a recipe if the action composes none this time."""
    for key in keys:
        if key != "action" and _takes_recipe(key):
            raise RecipeError(key, why, f"remove {key}")


def _takes_recipe(key: str) -> bool:
    return key in {"recipe", "within_days"} or not is_own(key)
