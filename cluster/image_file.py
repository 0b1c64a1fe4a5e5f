"""For which processors an image is: Apptainer's file says it, a squashed one has programs."""

import subprocess
from pathlib import Path

# A line that starts the file, the magic word, the version and two digits for the processor:
# github.com/apptainer/sif, pkg/sif/sif.go and arch.go.
_LAUNCH_BYTES, _MAGIC, _VERSION_BYTES = 32, b"SIF_MAGIC\0", 3
_SIF_CODES = {b"02": "x86_64", b"04": "aarch64"}
_SQUASHED = b"hsqs"
# The numbers of e_machine, at byte 18 of each program: elf(5).
_ELF, _MACHINE = b"\x7fELF", slice(18, 20)
_ELF_CODES = {62: "x86_64", 183: "aarch64"}
_PROGRAMS = ("bin/bash", "usr/bin/bash", "bin/sh", "usr/bin/dash", "bin/busybox")


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
