"""Relocatable archive of a virtual environment.

Python finds its environment by the ``pyvenv.cfg`` above its program, so ``bin/python`` works
from any folder. Shebangs of scripts and ``.pth`` files contain the old path and are rewritten
in the archive. The base interpreter of the environment is not archived.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from components.data.files import replace_atomically
from components.errors import RecipeError

FOLDER = "copies"  # in the environment, but not archived
FORMAT = 1  # version of the archive format, part of its key
# Shebangs of pip's scripts. The second form is for paths longer than the kernel's limit.
SHEBANG = re.compile(rb"#!(?P<program>/[^ \n]+)\n")
LONG_SHEBANG = re.compile(
    rb"#!/bin/sh\n'''exec' \"?(?P<program>/[^ \"\n]+)\"? \"\$0\" \"\$@\"\n' '''\n"
)
# Starts the interpreter in the script's folder, as `uv venv --relocatable` writes it.
RELOCATABLE = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'{name}' "$0" "$@"
' '''
"""


def archive_venv(venv: Path) -> Path:
    """Return the archive of ``venv``, which is stored in the environment's own folder.

    It is reused until a file changes. An environment with parts elsewhere is a RecipeError.
    """
    _check_venv(venv)
    archive = venv / FOLDER / f"venv-{key_of(venv)}.tar"
    if not archive.exists():
        try:
            archive.parent.mkdir(exist_ok=True)
            with (
                replace_atomically(archive) as stream,
                tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for file in _files(venv):
                    _add(tar, venv, file)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise RecipeError(str(archive), problem, "free disk space there") from None
        for other in set(archive.parent.glob("venv-*.tar")) - {archive}:
            other.unlink()
    return archive


def _check_venv(venv: Path) -> None:
    """Raise RecipeError if this is no virtual environment, or parts of it are elsewhere."""
    if not (venv / "pyvenv.cfg").is_file():
        raise RecipeError(
            "cluster.imports",
            f"node_local, but {venv} has no pyvenv.cfg, so it is not a virtual environment",
            "set site.venv to a virtual environment, or set cluster.imports=shared",
        )
    for record in sorted(venv.glob("lib/*/site-packages/*.dist-info/direct_url.json")):
        if json.loads(record.read_text("utf-8")).get("dir_info", {}).get("editable"):
            raise _elsewhere(venv, f"{record.parent.stem} is installed in editable mode")
    for file in sorted(venv.glob("lib/*/site-packages/*.pth")):
        for line in _places(file):
            if not line.is_relative_to(venv):
                raise _elsewhere(venv, f"{file.name} adds {line}")


def key_of(venv: Path) -> str:
    """Return a hash of the names, sizes and times of all files except ``__pycache__``."""
    digest = sha256(f"{FORMAT}\n".encode())
    for file in _files(venv):
        if "__pycache__" not in file.parts:
            name, status = file.relative_to(venv), file.lstat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _files(venv: Path) -> Iterator[Path]:
    """Yield files and links in a stable order. Links to folders are not followed."""
    for parent, folders, names in os.walk(venv):
        here = Path(parent)
        if here == venv:
            folders[:] = [name for name in folders if name != FOLDER]
        folders.sort()
        links = [name for name in folders if (here / name).is_symlink()]
        yield from (here / name for name in sorted([*names, *links]))


def _add(tar: tarfile.TarFile, venv: Path, file: Path) -> None:
    """Add a file to the archive: unchanged, relocated, or the target of an outside link."""
    name, in_bin = f"venv/{file.relative_to(venv)}", file.parent == venv / "bin"
    if in_bin and file.name.lower().startswith("activate"):
        return  # contains the old path; a job script sets the same variables
    interpreter = in_bin and file.name.startswith("python")
    may_lead_away = file.is_symlink() and not interpreter
    if may_lead_away and not file.resolve().is_relative_to(venv.resolve()):
        if file.is_dir():
            raise _elsewhere(venv, f"{file.relative_to(venv)} is a link to {file.resolve()}")
        file = file.resolve()
    info = tar.gettarinfo(file, arcname=name)
    if info.issym():
        target = file.readlink()
        is_inside = target.is_absolute() and target.is_relative_to(venv)
        info.linkname = os.path.relpath(target, file.parent) if is_inside else str(target)
        tar.addfile(info)
    elif (text := _changed(venv, file)) is not None:
        info.type, info.size = tarfile.REGTYPE, len(text)
        tar.addfile(info, io.BytesIO(text))
    elif info.isreg():
        with file.open("rb") as content:
            tar.addfile(info, content)
    else:  # a hard link to a file in the archive
        tar.addfile(info)


def _changed(venv: Path, file: Path) -> bytes | None:
    """Return the relocated text of a script or ``.pth`` file, None if it needs no change."""
    if file.suffix == ".pth" and file.parent.name == "site-packages":
        places = file.read_text("utf-8")
        for place in _places(file):
            places = places.replace(str(place), os.path.relpath(place, file.parent))
        return places.encode()
    if file.parent != venv / "bin" or file.is_symlink():
        return None
    text, prefix = file.read_bytes(), str(venv / "bin" / "python").encode()
    for form in (SHEBANG, LONG_SHEBANG):
        if (shebang := form.match(text)) and shebang["program"].startswith(prefix):
            name = Path(os.fsdecode(shebang["program"])).name
            return RELOCATABLE.format(name=name).encode() + text[shebang.end() :]
    return None


def _places(file: Path) -> list[Path]:
    """Return a ``.pth`` file's absolute folders. Other lines are code or relative paths."""
    lines = (line.strip() for line in file.read_text("utf-8").splitlines())
    return [Path(line) for line in lines if line.startswith("/")]


def _elsewhere(venv: Path, problem: str) -> RecipeError:
    return RecipeError(
        "cluster.imports",
        f"node_local, but in {venv} {problem}, so every rank would read outside it",
        "install it normally into the environment, or set cluster.imports=shared",
    )
