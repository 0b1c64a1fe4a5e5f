"""A command in a message works for a shell in the folder where it is printed."""

import shlex
import subprocess
from pathlib import Path

import pytest

from components.command_line import RUN, command_line


def test_run_py_has_its_folder_outside_the_clone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(RUN.parent)
    assert command_line("resume=runs/mine") == "python run.py resume=runs/mine"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.py").write_text("raise SystemExit('another program')")
    assert shlex.split(command_line("a=b"))[1:] == [str(RUN), "a=b"]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert str(RUN) in command_line("a=b")


@pytest.mark.parametrize("place", ["my runs/a", "a'b", "$(touch x)", "a;b", "ä&ö", "*"])
def test_a_shell_reads_the_words_as_they_were(place: str) -> None:
    program = 'python() { shift; printf "%s\\n" "$@"; }\n'
    words = ["bash", "-c", program + command_line(f"run={place}", "x=1")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"run={place}\nx=1\n"
