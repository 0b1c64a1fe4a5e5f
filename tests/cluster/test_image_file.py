"""For which processors an image is, told by the files of two programs."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.image_file import architecture_of
from tests.cluster.staging.test_stage import SIF

# `unsquashfs -cat IMAGE NAME` writes the file: here, one below the image's folder.
UNSQUASHFS = '#!/bin/bash\n[ "$1" = -cat ] || exit 2\nexec cat "$2.d/$3"\n'
INTEL, ARM, OTHER = 62, 183, 243


def program(machine: int) -> bytes:
    """Write the head of a program for Linux, as elf(5) has it."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 3, machine, 1)


@pytest.mark.parametrize(
    ("code", "found"), [("02", "x86_64"), ("04", "aarch64"), ("05", None), ("00", None)]
)
def test_apptainer_s_own_file_says_it(tmp_path: Path, code: str, found: str | None) -> None:
    (tmp_path / "a.sif").write_text(SIF.format(code=code) + "hsqs")
    assert architecture_of(tmp_path / "a.sif") == found


@pytest.mark.parametrize(
    ("name", "machine", "found"),
    [
        ("bin/bash", ARM, "aarch64"),
        ("usr/bin/bash", INTEL, "x86_64"),
        ("usr/bin/dash", OTHER, None),
        ("bin/true", ARM, None),
    ],
)
def test_of_a_squashed_one_a_shell_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, machine: int, found: str | None
) -> None:
    image = tmp_path / "a.sqsh"
    image.write_bytes(b"hsqs" + bytes(100))
    shell = tmp_path / "a.sqsh.d" / name
    shell.parent.mkdir(parents=True)
    shell.write_bytes(program(machine))
    (tmp_path / "unsquashfs").write_text(UNSQUASHFS)
    (tmp_path / "unsquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert architecture_of(image) == found


@pytest.mark.parametrize("head", [b"", b"#!/bin/bash\n", b"hsqs" + bytes(100)])
def test_nothing_is_said_of_what_nobody_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    (tmp_path / "image").write_bytes(head)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert architecture_of(tmp_path / "image") is None


@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="squashfs-tools is not here")
def test_a_squashed_folder_is_read_by_the_real_program(tmp_path: Path) -> None:
    files = tmp_path / "files" / "usr" / "bin"
    files.mkdir(parents=True)
    (tmp_path / "files" / "bin").symlink_to("usr/bin")
    shutil.copyfile(Path(sys.executable).resolve(), files / "bash")
    image = tmp_path / "a.sqsh"
    words = ["mksquashfs", str(tmp_path / "files"), str(image), "-quiet", "-no-progress"]
    subprocess.run(words, check=True, capture_output=True)
    machine = subprocess.run(["uname", "-m"], check=True, capture_output=True, text=True)
    assert architecture_of(image) == machine.stdout.strip()
