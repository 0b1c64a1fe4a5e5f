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

from command.arguments import ROOT, groups
from command.completion import completions
from command.main import main
from command.words import ACTIONS
from tests.command.test_command_line import imported

INSTALL = f'eval "$({sys.executable} {ROOT}/run.py --shell-completion install=bash)"'


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("recipe=teu", ["recipe=teuken7b"]),
        ("rec", ["recipe="]),
        ("recipe=teuken7b clu", ["cluster.", "cluster="]),
        (
            "recipe=teuken7b cluster=jean",
            ["cluster=jean_zay", "cluster=jean_zay_h100", "cluster=jean_zay_v100"],
        ),
        ("recipe=teuken7b action=di", ["action=diff"]),
        ("action=status ru", ["run=", "runs="]),
        ("action=status pre", []),
        ("action=status run=x ru", ["runs="]),
        ("action=export rows=", ["rows=padded", "rows=published"]),
        ("recipe=teuken7b output=", ["output=json", "output=text"]),
        ("action=show cite=", ["cite=false", "cite=true"]),
        ("recipe=teuken7b optimizer.wei", ["optimizer.weight_decay="]),
        ("recipe=teuken7b optimizer.weight_decay=", ["optimizer.weight_decay=0.1"]),
        ("recipe=teuken7b budg", ["budget."]),
        ("recipe=teuken7b model.attention.qk", ["model.attention.qk_norm="]),
        ("recipe=teuken7b model.walnut", []),
        (
            "recipe=teuken7b parallelism.rec",
            ["parallelism.recompute=", "parallelism.recompute_every="],
        ),
        (
            "-m recipe=teuken7b,mula1",
            ["recipe=teuken7b,mula100b_a7b", "recipe=teuken7b,mula1b"],
        ),
        ("-m recipe=teuken7b,mula1b budg", ["budget."]),
        ("-m study=teu", ["study=teuken_scaling"]),
        ("-m stu", ["study="]),
        ("stu", []),
        ("--ver", ["--version"]),
        ("optimizer.wei", []),
        ("recipe=nothing budg", []),
        ("recipe=teuken7b model.dim=sixty budg", []),
        ('recipe=teuken7b "budg', []),
        ("recipe=teuken7b why='two words' budg", ["budget."]),
    ],
)
def test_a_word_is_completed(line: str, found: list[str]) -> None:
    assert completions(f" {line}") == found


def test_an_empty_line_offers_what_there_is() -> None:
    offered = completions(" ")
    assert {"recipe=", "action=", "run=", *(f"{name}=" for name in groups())} <= {*offered}
    assert completions(" action=") == sorted(f"action={name}" for name in ACTIONS)


def test_files_are_offered_if_a_shell_takes_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "my; rm -r x.yaml", "my$(x).yaml", "my\nx.yaml", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "mill").mkdir()
    assert completions(" recipe=./m") == ["recipe=./mill/", "recipe=./mine.yaml"]
    assert completions(" recipe=./mill/") == []
    assert completions(f" action=report run={tmp_path}/mil") == [
        f"run={tmp_path}/mill/",
    ]
    assert completions(" recipe=./.h") == ["recipe=./.hidden"]
    assert completions(" recipe=/none/x") == []
    assert completions(" recipe=mi") == []
    assert completions(" action=diff a=mil") == ["a=mill/"]


def test_another_shell_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    for asked in ("install=zsh", "walnut=bash", "install"):
        assert main(["--shell-completion", asked]) == 2
        assert "is not known, only bash is\n  write eval " in capfd.readouterr().err


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


def test_what_is_installed_is_taken_back(tmp_path: Path) -> None:
    gone = INSTALL.replace("install=", "uninstall=")
    script = (
        f"complete -W walnut python3\n{INSTALL}\n{INSTALL}\n{gone}\ncomplete -p; type _kochbuch"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "complete -W 'walnut' python3\n"


def test_tab_in_a_terminal_writes_the_word_out(tmp_path: Path) -> None:
    """A real bash, with readline: it is typed at, and what it shows is read."""
    typed = f"python3 {ROOT}/run.py recipe=teuken7b action=sh\t optimizer.wei\t"
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
        wait_for(master, "ready")
        os.write(master, typed.encode())
        shown = wait_for(master, "optimizer.weight_decay=")
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
    assert "action=show optimizer.weight_decay=" in re.sub(r"[\r\n]", "", shown)
    assert "Traceback" not in shown


def wait_for(terminal: int, text: str) -> str:
    shown, end = "", time.monotonic() + 600
    while text not in shown.replace("\r", "").replace("\n", ""):
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4_096).decode(errors="replace")
    return shown


def test_it_answers_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "python run.py recipe=teuken7b optimizer.wei")
    names = imported(("--shell-completion", "query=bash"), tmp_path)
    assert not names & {"torch", "lightning", "numpy"}
