"""A stage: for which machine, from which commit, and trained without a network."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.staging import (
    INSTALLER,
    RECORD,
    bundle_code,
    close_stage,
    copy_image,
    copy_tree,
    open_stage,
    target_of,
    write_installer,
)
from cluster.user import User
from command.actions.prepare.stage import locks_of
from components.errors import RecipeError
from tests.cluster.jobs import ROOT, recipe_of
from tests.cluster.programs import Programs
from tests.life.conftest import entries

WORDS = ("recipe=teuken7b", "budget.total_tokens=20480", "cluster.ranks=1")
# What a network namespace begins with is a loopback interface that is down.
LOOPBACK_UP = """import fcntl, socket, struct
lo = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, lo)
"""
OFFLINE = ("unshare", "--net", "--map-root-user")
HAS_NAMESPACES = (
    shutil.which("unshare") is not None
    and subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0
)


def call(*command: str, cwd: Path) -> str:
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.cluster  # three minutes of installing: make cluster has it
@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
@pytest.mark.timeout(3_600)
def test_stage_trains_without_a_network(tmp_path: Path) -> None:
    clone, home, stage = (tmp_path / name for name in ("clone", "home", "made.stage"))
    call("git", "clone", "--quiet", str(ROOT), str(clone), cwd=tmp_path)
    run_py = (sys.executable, str(clone / "run.py"), *WORDS)
    call(*run_py, "action=prepare", "stage=true", f"file={stage}", cwd=tmp_path)
    call(*run_py, f"run={tmp_path / 'here'}", cwd=tmp_path)
    script = tmp_path / "offline.sh"
    script.write_text(
        f"set -e\n{sys.executable} - <<'END'\n{LOOPBACK_UP}END\n"
        f"! timeout 5 {sys.executable} -c 'import socket; "
        'socket.create_connection(("9.9.9.9", 53), 3)\' 2> /dev/null\n'
        f"PYTHON={sys.executable} bash {stage}/install.sh {home}\n"
        f"cd {home}\n.venv/bin/python run.py {' '.join(WORDS)} run=there\n",
        "utf-8",
    )
    call(*OFFLINE, "bash", str(script), cwd=tmp_path)
    here, there = (
        [step["loss"] for step in entries(run, "step")]
        for run in (tmp_path / "here", home / "there")
    )
    assert len(here) > 1
    assert here == there


def test_stage_is_whole_or_has_no_record(tmp_path: Path) -> None:
    stage, data = tmp_path / "x.stage", tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "tokens").write_bytes(b"12345")
    open_stage(stage)
    copy_tree(data, stage / "prepared")
    close_stage(stage, {"recipe": "x"})
    call("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=stage)
    files = json.loads((stage / RECORD).read_text())["files"]
    assert files[0]["name"] == "prepared/deep/tokens"
    open_stage(stage)  # whoever goes on begins by taking the record away
    assert not (stage / RECORD).exists()
    copied = stage / "prepared" / "deep" / "tokens"
    copied.unlink()
    copied.write_bytes(b"1")  # half of it
    copy_tree(data, stage / "prepared")
    assert copied.read_bytes() == b"12345"


def test_folder_that_is_no_stage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RecipeError, match=r"contains thesis.tex and is not a stage"):
        open_stage(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RecipeError, match=r"file: cannot write .*\n  use another"):
        open_stage(tmp_path / "thesis.tex" / "x.stage")


HOMES = (
    *("teuken7b cluster=juwels", "mula7b_a1b cluster=aurora", "gpt20b cluster=smng_p2"),
    *("teuken7b cluster=frontier", "teuken7b cluster=jupiter"),
)


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    return call("git", "-C", str(folder), *own, *words, cwd=folder)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "run.py").write_text("1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_bundle_is_the_commit_without_changes(repository: Path, tmp_path: Path) -> None:
    commit = bundle_code(repository, tmp_path)
    git(tmp_path, "clone", "--quiet", "repository.bundle", "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD").strip() == commit
    assert (tmp_path / "clone" / "run.py").read_text() == "1\n"
    (tmp_path / "repository.bundle").unlink()
    (repository / "mine.py").touch()
    with pytest.raises(RecipeError, match=r"1 files differ from the commit, such as mine.py"):
        bundle_code(repository, tmp_path)
    assert not (tmp_path / "repository.bundle").exists()
    message = r"repository: git rev-parse in .*\n  stage from a git clone"
    with pytest.raises(RecipeError, match=message):
        bundle_code(tmp_path, tmp_path)


def test_target_comes_from_the_user_and_the_profile() -> None:
    juwels = recipe_of("recipe=teuken7b", "cluster=juwels")
    assert target_of(juwels, User()).python == "3.12"
    assert target_of(juwels, User(python="3.13")).python == "3.13"
    assert "--python-version=3.13" in target_of(juwels, User(python="3.13")).pip_options
    aurora = recipe_of("recipe=mula7b_a1b", "cluster=aurora")  # a module brings torch
    assert target_of(aurora, User(python="3.12")).provided == ("torch",)
    target = target_of(recipe_of("recipe=teuken7b", "cluster=jupiter"), User())
    assert (target.python, target.architecture) == ("3.13", "aarch64")
    assert "--platform=manylinux_2_28_aarch64" in target.pip_options
    assert not any("x86_64" in option for option in target.pip_options)
    here = recipe_of("recipe=teuken7b", "cluster=local")
    assert target_of(here, User()).architecture == platform.machine()
    for version in ("3.10", "2.7", "3.12.1", "new"):
        with pytest.raises(RecipeError, match=r"site.python: '.*' is not a Python version of"):
            target_of(juwels, User(python=version))


def test_installer_refuses_other_processors(tmp_path: Path) -> None:
    recipe = recipe_of("recipe=teuken7b", "cluster=jupiter", "cluster.site.modules=[]")
    target = target_of(recipe, User())
    write_installer(tmp_path, recipe, target, commit="c0ffee", image=None, words=())
    (tmp_path / "SHA256SUMS").touch()
    (tmp_path / "programs").mkdir()
    programs = Programs(tmp_path / "programs")
    programs.add("uname", says="x86_64\n")
    programs.add("sha256sum")
    path = {"PATH": f"{programs.folder}:/usr/bin:/bin"}
    command = ["bash", str(tmp_path / INSTALLER), str(tmp_path / "home")]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = "this machine is x86_64, the wheels are for aarch64: stage for this cluster\n"
    assert done.stderr == message
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", HOMES)
def test_installer_is_shell_without_a_fault(words: str, tmp_path: Path) -> None:
    recipe, said = recipe_of(*f"recipe={words}".split()), tuple(words.split())
    target = target_of(recipe, User(python="3.12"))
    write_installer(tmp_path, recipe, target, commit="c0ffee", image=None, words=said)
    text = (tmp_path / INSTALLER).read_text("utf-8")
    assert 'git -C "$home" checkout --quiet --detach c0ffee' in text
    assert ("--system-site-packages" in text) == ("torch" in target.provided)
    site = recipe.cluster.site
    modules = () if isinstance(site, str) else site.modules
    assert [line for line in modules if f"\nmodule {line}\n" not in text] == []
    call("bash", "-n", str(tmp_path / INSTALLER), cwd=tmp_path)
    if shutil.which("shellcheck"):
        call("shellcheck", "--exclude=SC1090,SC1091", str(tmp_path / INSTALLER), cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "locks"),
    [
        ((), ["run.lock"]),
        (("tracking=mlflow",), ["run.lock", "tracking.lock"]),
        (("precision=fp8",), ["run.lock", "fp8.lock"]),
        (
            ("tracking=wandb", "parallelism.engine=deepspeed"),
            ["run.lock", "deepspeed.lock", "tracking.lock"],
        ),
    ],
)
def test_libraries_of_the_recipe_are_staged(words: tuple[str, ...], locks: list[str]) -> None:
    assert locks_of(recipe_of("recipe=teuken7b", *words)) == locks
    judged = locks_of(recipe_of("recipe=teuken7b", *words), evaluates=True)
    assert {*judged} == {*locks, "evaluate.lock"}


def test_image_is_copied_or_refused(tmp_path: Path) -> None:
    image, stage = tmp_path / "torch.sif", tmp_path / "stage"
    stage.mkdir()
    image.write_bytes(b"image")
    assert copy_image(str(image), stage) == "torch.sif"
    assert (stage / "torch.sif").read_bytes() == b"image"
    with pytest.raises(RecipeError, match=r"site.image: .* does not exist"):
        copy_image(str(tmp_path / "none.sif"), stage)
