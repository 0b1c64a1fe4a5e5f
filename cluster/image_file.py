"""For which processors an image is: Apptainer's file says it, a squashed one has programs."""

import shutil
import subprocess
from pathlib import Path

from components.data.files import replace_atomically
from components.errors import RecipeError
from components.terminal import say

# A line that starts the file, the magic word, the version and two digits for the processor:
# github.com/apptainer/sif, pkg/sif/sif.go and arch.go.
_LAUNCH_BYTES, _MAGIC, _VERSION_BYTES = 32, b"SIF_MAGIC\0", 3
_SIF_CODES = {b"02": "x86_64", b"04": "aarch64"}
_SQUASHED = b"hsqs"
# The numbers of e_machine, at byte 18 of each program: elf(5).
_ELF, _MACHINE = b"\x7fELF", slice(18, 20)
_ELF_CODES = {62: "x86_64", 183: "aarch64"}
_PROGRAMS = ("bin/bash", "usr/bin/bash", "bin/sh", "usr/bin/dash", "bin/busybox")


def stage_image(image: str | None, folder: Path, architecture: str) -> str | None:
    """Copy the container image that Python is in, if there is one, and return its name.

    Raises:
        RecipeError: there is no such file, or it is for other processors.
    """
    if image is None:
        return None
    source = Path(image)
    if not source.is_file():
        remedy = "name an image that is here"
        raise RecipeError("site.image", f"there is no file {image}", remedy)
    if (built := architecture_of(source)) is None:
        say(f"image: nothing here tells for which processors {source.name} is")
    elif built != architecture:
        problem = f"{source.name} is for {built}, the cluster's nodes are {architecture}"
        remedy = f"name an image that was built on {architecture}"
        raise RecipeError("site.image", problem, remedy)
    with source.open("rb") as read, replace_atomically(folder / source.name) as write:
        shutil.copyfileobj(read, write)
    return source.name


def architecture_of(image: Path) -> str | None:
    """Read it from the file; None where nothing here can tell."""
    with image.open("rb") as stream:
        head = stream.read(_LAUNCH_BYTES + len(_MAGIC) + _VERSION_BYTES + 2)
    magic, rest = head[_LAUNCH_BYTES:].partition(_MAGIC)[1:]
    if magic:
        return _SIF_CODES.get(rest[_VERSION_BYTES:][:2])
    return _of_program(image) if head.startswith(_SQUASHED) else None


def _of_program(image: Path) -> str | None:
    """Look at a shell in a file of squashfs, by the program that reads such files."""
    for name in _PROGRAMS:
        words = ["unsquashfs", "-cat", str(image), name]
        try:
            program = subprocess.run(words, capture_output=True, check=False).stdout
        except FileNotFoundError:
            return None
        if program.startswith(_ELF):
            return _ELF_CODES.get(int.from_bytes(program[_MACHINE], "little"))
    return None
