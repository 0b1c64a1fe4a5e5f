"""Help of an action, and the versions: asked in every way that people try."""

import re
import shlex

import pytest

from command.arguments import ROOT, read_point
from command.help import describe_action, find_help
from command.main import main
from command.options import OPTIONS
from command.words import ACTION_FORMS, ACTIONS, check_words, keys_of

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "words",
    [
        *(["plan=help"], ["help=plan"], ["help", "plan"], ["plan", "--help"]),
        *(["action=plan", "--help"], ["--help", "action=plan"]),
        ["recipe=teuken7b", "action=plan", "-h"],
    ],
)
def test_help_of_an_action_has_several_spellings(words: list[str], capfd: Said) -> None:
    assert main(words) == 0
    said = capfd.readouterr()
    assert said.out == describe_action("plan") + "\n"
    assert said.err == ""


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"], ["action=help"]])
def test_help_without_an_action_explains_the_command(words: list[str]) -> None:
    assert find_help(["recipe=help", "action=plan"]) is None  # help that nobody asked for
    said = find_help(words)
    assert said is not None
    assert said.startswith("python run.py recipe=NAME")
    assert max(map(len, said.splitlines())) <= 80
    assert len(said.splitlines()) <= 40
    groups = re.findall(r"^\S.*:$", said, re.M)
    assert len(groups) == 5
    assert sorted(re.findall(r"^  (\w+) +[A-Z].*\.$", said, re.M)) == sorted(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
def test_help_has_a_summary_words_an_example_and_a_page(action: str) -> None:
    text = describe_action(action)
    assert text.startswith(f"{action}: ")
    assert f"\ndocs/actions.md#{action}" in text
    assert "](" not in text
    assert max(map(len, text.splitlines())) <= 120
    for way in ACTION_FORMS:
        if way.action == action:
            assert all(f"  {name}=" in text for name in way.options.split())
    if action == "plan":  # a word of some ways says of which
        assert f"  calibrate=    {OPTIONS['calibrate']}\n" in text
        assert f"  at_most=      {OPTIONS['at_most']} (under -m)\n" in text
    for page in re.findall(r"^(docs/[\w/]+\.md)", text, re.M):
        assert (ROOT / page).is_file()


@pytest.mark.parametrize("action", ACTIONS)
def test_the_example_in_help_is_accepted(action: str) -> None:
    """Read as far as words go; the tests of the actions run them."""
    (example, *_) = re.findall(
        r"^  python run\.py (.*?)(?: +#.*)?$", describe_action(action), re.M
    )
    words = shlex.split(example)
    arguments = read_point(words)
    assert arguments.action in {action, "auto"}
    check_words(action, keys_of(words))


def test_version_lists_the_code_and_its_libraries(capfd: Said) -> None:
    assert main(["--version"]) == 0
    said = capfd.readouterr().out
    assert re.match(r"kochbuch \d+\.\d+\.\d+", said)
    for name in ("python", "torch", "lightning", "hydra-core"):
        assert re.search(rf"^{name} \S+$", said, re.M)
