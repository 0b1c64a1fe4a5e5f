"""Child processes run nothing out of the folder that somebody works in."""

import ast
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from components.child_process import ROOT, python_environment, tool_environment
from tests.house.test_house import SOURCES

# What Python, torch and the tools would import from a working folder that comes first.
NAMES = (
    *("torch", "json", "multiprocessing", "signal", "pathlib", "lightning", "yaml", "pip"),
    *("numpy", "runpy", "subprocess", "typing", "logging", "components", "command"),
    *("sitecustomize", "usercustomize"),
)
SHELL_TOOLS = ("git", "sh", "unsquashfs")


def plant(folder: Path, *names: str) -> Path:
    """Write modules that leave a mark when they are imported, and return the mark's file."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "mark"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write({name!r})\n")
    return mark


def run(*words: str, env: dict[str, str], cwd: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("path", [None, "", ":", ".:/site", "/site::", "x:/site:../y"])
def test_a_child_imports_nothing_of_the_working_folder(path, tmp_path: Path) -> None:
    mark = plant(tmp_path, *NAMES)
    base = dict(os.environ) if path is None else os.environ | {"PYTHONPATH": path}
    program = "import components, json, multiprocessing, sys; print(sys.path)"
    done = run("-c", program, env=python_environment(base), cwd=tmp_path)
    listed = ast.literal_eval(done.stdout)
    assert listed[0] == ROOT
    assert ("/site" in listed) == ("/site" in (path or ""))
    assert not any(Path(entry).is_relative_to(tmp_path) for entry in listed)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"])
def test_a_tool_searches_absolute_places_only(name: str) -> None:
    base = {name: ":/a:b:./c:/d:", "PYTHONSAFEPATH": "1", "HOME": "/h"}
    assert tool_environment(base) == {name: "/a:/d", "HOME": "/h"}
    assert tool_environment({name: ":."}) == {}


def test_the_command_restarts_if_pythonpath_has_the_working_folder(tmp_path: Path) -> None:
    # Python itself looks for the other two before a program's first line.
    mark = plant(tmp_path, *(name for name in NAMES if "customize" not in name))
    run(f"{ROOT}/run.py", "action=help", env=os.environ | {"PYTHONPATH": ":"}, cwd=tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH"])
def test_a_restarted_process_keeps_its_options(name: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\nfrom components.child_process import leave_working_folder\n"
        f"leave_working_folder()\nprint(sys.argv[1:], sys.warnoptions, os.environ[{name!r}])\n"
    )
    env = os.environ | {"PYTHONPATH": ROOT} | {name: f":/a:x:{ROOT}"}
    done = run("-W", "ignore", str(script), "a b", env=env, cwd=ROOT)
    places = f"{ROOT}:/a" if name == "PYTHONPATH" else f"/a:{ROOT}"
    assert done.stdout == f"['a b'] ['ignore'] {places}\n"


def starts_a_module(text: str) -> bool:
    """Return whether a list has an interpreter, then ``-m`` or ``-c``, or words of a caller."""
    lists = [node.elts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.List)]
    return any(
        isinstance(before, ast.Name | ast.Attribute)
        if isinstance(option, ast.Constant) and option.value in {"-m", "-c"}
        else isinstance(before, ast.Attribute) and isinstance(option, ast.Starred)
        for elements in lists
        for before, option in pairwise(elements)
    )


def test_every_program_is_started_with_an_environment_of_this_module() -> None:
    """But for tools of the system, which look nowhere but at ``PATH``."""
    wrong = []
    for file in SOURCES:
        text = file.read_text("utf-8")
        if not any(one in text for one in ("subprocess", "os.spawn", "os.posix_spawn")):
            continue
        if file.is_relative_to(Path(ROOT, "benchmarks")) and not starts_a_module(text):
            continue  # run.py itself takes the working folder off the search paths
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called not in {"subprocess.run", "subprocess.Popen"}:
                assert not called.startswith(("subprocess.", "os.spawn", "os.posix_")), file
                continue
            given = {one.arg: ast.unparse(one.value) for one in node.keywords}
            tool = any(f'["{one}"' in text for one in SHELL_TOOLS)
            if "environment" not in given.get("env", "") and not tool:
                wrong.append(f"{file}:{node.lineno}")
        if "env=environment" in text and "subprocess" in text:
            assert "python_environment(" in text, file
    assert wrong == []
