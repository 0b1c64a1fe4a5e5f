"""The words of a stage: for which machine, from which commit, with which installer."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.staging import (
    INSTALLER,
    bundle_code,
    copy_image,
    target_of,
    write_installer,
)
from cluster.user import User
from command.actions.prepare.stage import locks_of
from components.errors import RecipeError
from tests.cluster.jobs import recipe_of

HOMES = (
    "teuken7b cluster=juwels",
    "mula7b_a1b cluster=aurora",
    "gpt20b cluster=smng_p2",
    "teuken7b cluster=frontier",
    "teuken7b cluster=jupiter",
)
# What Apptainer writes first, with its code for the processors: `sif header` shows it.


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    command = ["git", "-C", str(folder), *own, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "run.py").write_text("1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_the_bundle_is_the_commit(repository: Path, tmp_path: Path) -> None:
    commit = bundle_code(repository, tmp_path)
    git(tmp_path, "clone", "--quiet", "repository.bundle", "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD").strip() == commit
    assert (tmp_path / "clone" / "run.py").read_text() == "1\n"


def test_what_is_not_committed_is_not_left_behind_silently(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "mine.py").touch()
    with pytest.raises(RecipeError, match=r"1 files differ from the commit, such as mine.py"):
        bundle_code(repository, tmp_path)
    assert not (tmp_path / "repository.bundle").exists()


def test_without_git_there_is_no_stage(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"repository: git rev-parse in .*\n  stage from a git clone"
    ):
        bundle_code(tmp_path, tmp_path)


def test_the_version_is_the_users_then_the_profiles() -> None:
    recipe = recipe_of("recipe=teuken7b", "cluster=juwels")
    assert target_of(recipe, User()).python == "3.12"
    assert target_of(recipe, User(python="3.13")).python == "3.13"
    assert "--python-version=3.13" in target_of(recipe, User(python="3.13")).pip_options


def test_a_module_that_brings_torch_is_respected() -> None:
    recipe = recipe_of("recipe=mula7b_a1b", "cluster=aurora")
    assert target_of(recipe, User(python="3.12")).provided == ("torch",)


def test_the_architecture_is_the_profiles_and_without_a_site_this_machines() -> None:
    recipe = recipe_of("recipe=teuken7b", "cluster=jupiter")
    target = target_of(recipe, User())
    assert (target.python, target.architecture) == ("3.13", "aarch64")
    assert "--platform=manylinux_2_28_aarch64" in target.pip_options
    assert not any("x86_64" in option for option in target.pip_options)
    here = recipe_of("recipe=teuken7b", "cluster=local")
    assert target_of(here, User()).architecture == platform.machine()


def test_an_installer_refuses_processors_that_its_wheels_are_not_for(tmp_path: Path) -> None:
    recipe = recipe_of("recipe=teuken7b", "cluster=jupiter", "cluster.site.modules=[]")
    target = target_of(recipe, User())
    write_installer(tmp_path, recipe, target, commit="c0ffee", image=None, words=())
    (tmp_path / "SHA256SUMS").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("uname", "echo x86_64"), ("sha256sum", "exit 0")):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    command = ["bash", str(tmp_path / INSTALLER), str(tmp_path / "home")]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "this machine is x86_64, the wheels are for aarch64: stage for this cluster\n"
    assert done.stderr == said
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("version", ["3.10", "2.7", "3.12.1", "new"])
def test_what_is_no_version_or_too_old_is_refused(version: str) -> None:
    recipe = recipe_of("recipe=teuken7b", "cluster=juwels")
    with pytest.raises(RecipeError, match=r"site.python: '.*' is not a Python version of"):
        target_of(recipe, User(python=version))


@pytest.mark.parametrize("words", HOMES)
def test_installers_are_shell_without_a_fault(words: str, tmp_path: Path) -> None:
    recipe = recipe_of(*f"recipe={words}".split())
    target = target_of(recipe, User(python="3.12"))
    write_installer(
        tmp_path, recipe, target, commit="c0ffee", image=None, words=tuple(words.split())
    )
    text = (tmp_path / INSTALLER).read_text("utf-8")
    assert 'git -C "$home" checkout --quiet --detach c0ffee' in text
    assert ("--system-site-packages" in text) == ("torch" in target.provided)
    assert (
        subprocess.run(["bash", "-n", str(tmp_path / INSTALLER)], check=False).returncode == 0
    )
    if shutil.which("shellcheck"):
        command = ["shellcheck", "--exclude=SC1090,SC1091", str(tmp_path / INSTALLER)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_libraries_that_not_every_run_needs_are_staged_if_the_recipe_does() -> None:
    own = ("recipe=teuken7b", "cluster=juwels")
    assert locks_of(recipe_of(*own)) == ["run.lock"]
    assert locks_of(recipe_of(*own, "tracking=mlflow")) == ["run.lock", "tracking.lock"]
    assert locks_of(recipe_of(*own), evaluates=True) == ["run.lock", "evaluate.lock"]
    float8 = (own[0], "precision=fp8")
    assert locks_of(recipe_of(*float8)) == ["run.lock", "fp8.lock"]
    both = (own[0], "tracking=wandb", "parallelism.engine=deepspeed")
    assert locks_of(recipe_of(*both)) == ["run.lock", "deepspeed.lock", "tracking.lock"]


def test_an_image_is_copied_or_refused(tmp_path: Path) -> None:
    image, stage = tmp_path / "torch.sif", tmp_path / "stage"
    stage.mkdir()
    image.write_bytes(b"image")
    assert copy_image(str(image), stage) == "torch.sif"
    assert (stage / "torch.sif").read_bytes() == b"image"
    with pytest.raises(RecipeError, match=r"site.image: .* does not exist"):
        copy_image(str(tmp_path / "none.sif"), stage)
