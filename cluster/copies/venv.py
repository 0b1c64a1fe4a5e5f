"""An archive of a virtual environment that runs wherever it is unpacked.

Python finds an environment by the ``pyvenv.cfg`` above its own program, so ``bin/python`` works
from any folder. What names the old one is changed on the way in: the first lines of scripts,
and ``.pth`` files. The interpreter that the environment was made with stays where it is.
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

FOLDER = "copies"  # in the environment, of which it is no part
FORMAT = 1  # of the archive: another one makes all anew
# The first lines of pip's scripts; the second form is for paths that the kernel would cut.
SHEBANG = re.compile(rb"#!(?P<program>/[^ \n]+)\n")
LONG_SHEBANG = re.compile(
    rb"#!/bin/sh\n'''exec' \"?(?P<program>/[^ \"\n]+)\"? \"\$0\" \"\$@\"\n' '''\n"
)
# The interpreter beside the script, as `uv venv --relocatable` writes it.
RELOCATABLE = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'{name}' "$0" "$@"
' '''
"""


def archive_venv(venv: Path) -> Path:
    """Return the archive of ``venv`` as it is now, below the environment itself.

    One that is there is taken if no file has since been added, removed or touched.

    Raises:
        RecipeError: it is no environment, part of it is elsewhere, or there is no room.
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
            raise RecipeError(str(archive), problem, "make room there") from None
        for other in set(archive.parent.glob("venv-*.tar")) - {archive}:
            other.unlink()
    return archive


def _check_venv(venv: Path) -> None:
    """Refuse what would still be read from its old place by every rank."""
    if not (venv / "pyvenv.cfg").is_file():
        raise RecipeError(
            "cluster.imports",
            f"node_local, but {venv} has no pyvenv.cfg: it is no virtual environment",
            "name one by site.venv, or set cluster.imports=shared",
        )
    for record in sorted(venv.glob("lib/*/site-packages/*.dist-info/direct_url.json")):
        if json.loads(record.read_text("utf-8")).get("dir_info", {}).get("editable"):
            raise _elsewhere(venv, f"{record.parent.stem} is installed in editable mode")
    for file in sorted(venv.glob("lib/*/site-packages/*.pth")):
        for line in _places(file):
            if not line.is_relative_to(venv):
                raise _elsewhere(venv, f"{file.name} adds {line}")


def key_of(venv: Path) -> str:
    """Digest names, sizes and times of all files but those that Python compiles by itself."""
    digest = sha256(f"{FORMAT}\n".encode())
    for file in _files(venv):
        if "__pycache__" not in file.parts:
            name, found = file.relative_to(venv), file.lstat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _files(venv: Path) -> Iterator[Path]:
    """List all that is no folder, in an order that stays; links to folders are not followed."""
    for parent, folders, names in os.walk(venv):
        here = Path(parent)
        if here == venv:
            folders[:] = [name for name in folders if name != FOLDER]
        folders.sort()
        links = [name for name in folders if (here / name).is_symlink()]
        yield from (here / name for name in sorted([*names, *links]))


def _add(tar: tarfile.TarFile, venv: Path, file: Path) -> None:
    """Add a file as it is, as it has to be elsewhere, or what a link out of here leads to."""
    name, in_bin = f"venv/{file.relative_to(venv)}", file.parent == venv / "bin"
    if in_bin and file.name.lower().startswith("activate"):
        return  # it says where the environment was; a job script sets what it would
    interpreter = in_bin and file.name.startswith("python")
    may_lead_away = file.is_symlink() and not interpreter
    if may_lead_away and not file.resolve().is_relative_to(venv.resolve()):
        if file.is_dir():
            raise _elsewhere(venv, f"{file.relative_to(venv)} is a link to {file.resolve()}")
        file = file.resolve()
    info = tar.gettarinfo(file, arcname=name)
    if info.issym():
        target = file.readlink()
        own = target.is_absolute() and target.is_relative_to(venv)
        info.linkname = os.path.relpath(target, file.parent) if own else str(target)
        tar.addfile(info)
    elif (text := _changed(venv, file)) is not None:
        info.type, info.size = tarfile.REGTYPE, len(text)
        tar.addfile(info, io.BytesIO(text))
    elif info.isreg():
        with file.open("rb") as content:
            tar.addfile(info, content)
    else:  # a hard link to what is in the archive
        tar.addfile(info)


def _changed(venv: Path, file: Path) -> bytes | None:
    """Return what a script or a list of places has to say elsewhere, None if it says it."""
    if file.suffix == ".pth" and file.parent.name == "site-packages":
        places = file.read_text("utf-8")
        for place in _places(file):
            places = places.replace(str(place), os.path.relpath(place, file.parent))
        return places.encode()
    if file.parent != venv / "bin" or file.is_symlink():
        return None
    text, own = file.read_bytes(), str(venv / "bin" / "python").encode()
    for form in (SHEBANG, LONG_SHEBANG):
        if (found := form.match(text)) and found["program"].startswith(own):
            name = Path(os.fsdecode(found["program"])).name
            return RELOCATABLE.format(name=name).encode() + text[found.end() :]
    return None


def _places(file: Path) -> list[Path]:
    """List the absolute folders that a ``.pth`` file adds; other lines are code or relative."""
    lines = (line.strip() for line in file.read_text("utf-8").splitlines())
    return [Path(line) for line in lines if line.startswith("/")]


def _elsewhere(venv: Path, problem: str) -> RecipeError:
    return RecipeError(
        "cluster.imports",
        f"node_local, but of {venv} {problem}: every rank would read there",
        "install it into the environment as any other, or set cluster.imports=shared",
    )
