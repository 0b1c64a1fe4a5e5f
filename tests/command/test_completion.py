"""Completion by Tab, as the command answers and as a bash shows it."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command.arguments import ROOT, list_config_groups
from command.completion import list_completions
from command.main import main
from command.words import ACTIONS

INSTALL = f'eval "$({sys.executable} {ROOT}/run.py --shell-completion install=bash)"'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("recipe=teu", ["recipe=teuken7b"]),
        ("recipe=teuken7b clu", ["cluster="]),
        ("cluster=jean_zay_", ["cluster=jean_zay_h100", "cluster=jean_zay_v100"]),
        ("recipe=teuken7b action=di", ["action=diff"]),
        ("action=export rows=", ["rows=padded", "rows=published"]),
        ("action=show cite=", ["cite=false", "cite=true"]),
        ("action=status run=", []),
        ("recipe=teuken7b model.walnut", []),
    ],
)
def test_a_word_is_completed(line: str, words: list[str]) -> None:
    assert list_completions(f" {line}") == words


def test_completion_of_an_empty_line_lists_all_words() -> None:
    offered = list_completions(" ")
    groups = {f"{name}=" for name in list_config_groups()}
    assert {"recipe=", "action=", "run=", *groups} <= {*offered}
    assert list_completions(" action=") == sorted(f"action={name}" for name in ACTIONS)


def test_an_unsupported_shell_has_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    for request in ("install=zsh", "walnut=bash", "install"):
        assert main(["--shell-completion", request]) == 2
        assert f"expected install=bash, got {request!r}\n  run eval " in capfd.readouterr().err


COMPLETE = """
{install}
read -ra COMP_WORDS <<< "${{1//=/ = }}"
COMP_LINE=$1 COMP_POINT=${{#1}} COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
{before}
complete -p python3 >&2
compopt() {{ :; }}
_kochbuch
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def in_bash(line: str, folder: Path, before: str = "") -> list[str]:
    script = COMPLETE.format(install=INSTALL, before=before)
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "complete -o bashdefault -o default -F _kochbuch python3\n"
    return done.stdout.split()


def test_bash_gets_the_part_behind_the_equals_sign_or_the_whole_word(tmp_path: Path) -> None:
    line = f"python3 {ROOT}/run.py recipe=teu"
    assert in_bash(line, tmp_path) == ["teuken7b"]
    whole = "COMP_WORDBREAKS=${COMP_WORDBREAKS//=}"
    assert in_bash(line, tmp_path, whole) == ["recipe=teuken7b"]


def test_bash_runs_no_other_script(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("raise SystemExit(open('touched', 'w'))")
    assert in_bash("python3 run.py recipe=teu", tmp_path) == []
    assert [one.name for one in tmp_path.iterdir()] == ["run.py"]


def test_uninstall_removes_the_completion() -> None:
    gone = INSTALL.replace("install=", "uninstall=")
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{INSTALL}\n{gone}\ncomplete -p"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


def read_until(terminal: int, text: str) -> str:
    """Read what the terminal shows, without line breaks, until it contains ``text``."""
    shown, end = "", time.monotonic() + 600
    while text not in shown:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += re.sub(r"[\r\n]", "", os.read(terminal, 4_096).decode(errors="replace"))
    return shown


@pytest.mark.long
def test_tab_in_a_terminal_completes_the_word(tmp_path: Path) -> None:
    """Type into an interactive bash, so that readline calls the completion."""
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        cwd=tmp_path,
        env=os.environ | {"PS1": "$ ", "TERM": "dumb", "INPUTRC": "/dev/null"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        os.write(master, f"{INSTALL}; echo rea''dy\n".encode())
        read_until(master, "ready")
        os.write(master, f"python3 {ROOT}/run.py recipe=teu\t action=sh\t".encode())
        shown = read_until(master, "action=show")
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
    assert "recipe=teuken7b action=show" in shown
    assert "Traceback" not in shown
