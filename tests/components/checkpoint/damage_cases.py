"""What can happen to the newest checkpoint of a run."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from components.checkpoint.metadata import MARKER, FileSection, newest_checkpoint, read_marker
from components.fault_tolerance.faults import truncate_newest


class Bomb:
    """What a pickle may do: anything, as soon as it is read."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("executed",)


def newest(folder: Path) -> Path:
    found = newest_checkpoint(folder)
    assert found is not None
    return found


def first_file(folder: Path) -> Path:
    return min(newest(folder).glob("*.safetensors"))


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 0b100
    file.write_bytes(content)


def lose_a_file(folder: Path) -> None:
    first_file(folder).unlink()


def cut_a_file(folder: Path) -> None:
    truncate_newest(folder)


def lengthen_a_file(folder: Path) -> None:
    with first_file(folder).open("ab") as stream:
        stream.write(b"\0")


def put_a_pickle(folder: Path) -> None:
    first_file(folder).write_bytes(pickle.dumps(Bomb()))


def put_a_pickle_and_mark_it(folder: Path) -> None:
    """Let the marker say that the pickle is what was written: its digests keep out no one."""
    file, content = first_file(folder), pickle.dumps(Bomb())
    file.write_bytes(content)
    marker = read_marker(newest(folder))
    sections = (FileSection(len(content), sha256(content).hexdigest()),)
    marker = replace(marker, files={**marker.files, file.name: sections})
    (newest(folder) / MARKER).write_text(marker.to_json())


def cut_the_marker(folder: Path) -> None:
    marker = newest(folder) / MARKER
    marker.write_text(marker.read_text()[:-9])


def change_the_marker(folder: Path) -> None:
    marker = newest(folder) / MARKER
    tree = json.loads(marker.read_text())
    tree["progress"]["tokens"] += 10
    marker.write_text(json.dumps(tree))


DAMAGES = {
    "is missing": lose_a_file,
    "bytes, .* were written": cut_a_file,
    "bytes, [0-9]+ were written": lengthen_a_file,
    "[0-9]+ bytes, [0-9]+ were written": put_a_pickle,
    "is not JSON": cut_the_marker,
    "was changed after it was written": change_the_marker,
}
