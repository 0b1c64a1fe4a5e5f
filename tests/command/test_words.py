"""Words that an action would ignore: refused by the command, with what would take them."""

import ast
from pathlib import Path

import pytest

from command.arguments import COMMAND_KEYS
from command.main import main
from command.options import OPTIONS
from command.words import ACTION_FORMS, ACTIONS, RENAMED, check_words, is_own, keys_of
from components.config.recipe import Recipe
from components.config.schema.types import fields_of
from tests.components.tracking.runs import START, STEPS, write_run

Said = pytest.CaptureFixture[str]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "recipe=teuken7b"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", [*START, *STEPS])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("recipe=teuken7b action=plan run=x", "run: not used by action=plan\n  remove run; "),
        ("recipe=teuken7b again=true", "again: not used by action=train\n  remove again; used"),
        ("recipe=teuken7b action=show site.account=me", "; used by prepare, render, submit, "),
        ("recipe=teuken7b action=dryrun calibrate=[x]", "; used by plan\n"),
        ("action=rewind run=x at_tokens=5", "action: 'rewind' has been replaced\n"),
        ("action=status rum=x", "rum: action=status does not accept recipe keys\n  did you"),
        ("action=cancel run=x recipe=a", "recipe: action=cancel does not accept recipe keys\n"),
        ("action=verify file=x recipe=a", "recipe: action=verify reads the recipe from the l"),
        ("action=export recipe=a", "recipe: an export reads its recipe from its run folder\n"),
        ("action=evaluate run=x model.dim=6", "model.dim: an evaluation reads its recipe"),
        ("action=report sync=true run=x file=y", "file: not used by action=report w"),
        ("action=diff a=x b=y recipe=a", "recipe: the recipes are a= and b=\n"),
        ("action=pack run=x budget.seed=1", "budget.seed: a bundle of a run reads its recipe"),
        ("resume=x run=y", "run: not used by action=train with resume=\n"),
        ("resume=x cluster=juwels", "resume: a resumed run cannot change cluster;"),
        (
            "action=evaluate run=x ranks=2",
            "used by evaluate with file=, evaluate with checkpoints=",
        ),
        ("action=evaluate run=x text=y tasks=[z]", "text: not used by action=evaluate with t"),
        ("action=evaluate file=x tasks=[y] run=z", "run: not used by action=evaluate with f"),
        ("action=plan calibrate=[x] file=y", "file: not used by action=plan with cal"),
        ("action=plan calibrate=[x] cluster=alps", "cluster: a calibration reads run"),
        (["action=diff", "a=teuken7b file=x", "b=a"], "file: a= accepts only recipe keys\n"),
        ("-m study=mula_weak action=plan run=x", "run: not used by action=plan under -m\n"),
        ("-m study=mula_weak action=report at_most=2", "at_most: not used by action=report wi"),
        ("-m study=mula_weak action=train again=true", "again: not used by action=train under"),
    ],
)
def test_unused_word_has_remedy(words: str | list[str], message: str, capfd: Said) -> None:
    assert main(words.split() if isinstance(words, str) else words) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 2
    assert said.out == ""


def test_sweep_takes_further_words(capfd: Said) -> None:
    words = [RECIPE, "cluster=juwels", "at_most=2"]
    assert main(words) == 2
    assert "at_most: not used by action=submit\n" in capfd.readouterr().err
    assert main(["-m", *words, "budget.seed=1,2", "file=x"]) == 2
    said = capfd.readouterr().err
    assert said.count("file: not used by action=submit under -m\n") == 1  # shared by all points
    assert "at_most" not in said


def test_compared_runs_take_no_recipe_key(run: Path, capfd: Said) -> None:
    assert main(["action=diff", f"a={run}", f"b={run}"]) == 0
    assert main(["action=diff", f"a={run}", f"b={run}", "budget.seed=7"]) == 2
    assert "budget.seed: a= and b= are both runs or locks" in capfd.readouterr().err


def test_every_word_section_and_option_is_used() -> None:
    """And every action can be asked plainly, after what makes it another way."""
    for key in set(COMMAND_KEYS) - {"action"}:
        assert is_own(key)
    assert not is_own("tracking")
    for action in ACTIONS:
        *others, plain = (way for way in ACTION_FORMS if way.action == action)
        assert all(way.given for way in others)
        assert not plain.given
    sections = set(fields_of(Recipe)) - {"name", "description", "reference_cluster"}
    for action in ("show", "plan", "dryrun", "parity", "prepare", "render", "submit"):
        check_words(action, [*(f"{section}.x" for section in sections), "recipe", "scale"])
    assert all(OPTIONS.values())
    assert {option for way in ACTION_FORMS for option in way.options.split()} == {*OPTIONS}


def _options_read(action: str) -> set[str]:
    """Find the options that an action's file or folder looks up in ``arguments`` itself."""
    room = ROOT / "command" / "actions"
    files = [*room.glob(f"{action}.py"), *room.glob(f"{action}/*.py")]
    files += room.glob(f"jobs/{action}.py")
    assert files, action
    looked = {
        node.attr
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "arguments"
    }
    return looked & OPTIONS.keys()


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_accept_every_word_that_they_read(action: str) -> None:
    for key in _options_read(action):
        assert any(way.uses_key(key) for way in ACTION_FORMS if way.action == action), key


def test_each_side_takes_common_search(capfd: Said) -> None:
    """Which no cluster can answer that nobody has measured."""
    words = ["action=diff", "a=teuken7b", "b=teuken7b parallelism=auto"]
    assert main(words) == 2
    alone = capfd.readouterr().err
    assert main([*words[:2], "b=teuken7b", "parallelism=auto"]) == 2
    assert capfd.readouterr().err == alone
    assert "parallelism: auto, but cluster" in alone


FORMS = [("action={}", name) for name in RENAMED]
FORMS += [("help={}", next(iter(RENAMED))), ("-m action={} study=ladder", next(iter(RENAMED)))]


@pytest.mark.parametrize(("words", "name"), FORMS)
def test_renamed_action_has_its_command(name: str, words: str, capfd: Said) -> None:
    assert main(words.format(name).split()) == 2
    said = capfd.readouterr().err
    assert said.endswith(f": {name!r} has been replaced\n  write {RENAMED[name]}\n")
    command = RENAMED[name].partition(",")[0].split()
    action = command.pop(0).removeprefix("action=") if "action=" in command[0] else "train"
    check_words(action, keys_of(command))
