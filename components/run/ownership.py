"""Ownership of a run folder: a seal of this user's, and links that lead out of it.

``recipe.json`` and ``data.json`` name places anywhere, to be trusted in the user's own runs
alone. Beside each lies an HMAC of it, ``recipe.json.mac``, under a key in the user's home.
"""

import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from components.data.files import write_atomically
from components.errors import RecipeError
from components.json_file import MOST_BYTES, open_regular

_REPOSITORY = re.compile(r"(models|datasets)--")
_OWN_FILE = re.compile(r"stop|.+\.(?:json|jsonl|mac|lock|diff|html|csv|yaml|journal)(?:\..+)?")
SEAL = ".mac"  # behind the name of what is sealed
KEY_BYTES = 32
# Folders of a run in which this program reads, writes or removes files. Others may lie beside
# them (caches, an environment, sockets of other programs): nothing in them is ever opened.
FOLDERS = frozenset({
    *(
        "checkpoints",
        "children",
        "copies",
        "evaluation",
        "export",
        "hangs",
        "jobs",
        "preflight",
    ),
    *("profile", "ranks", "rehearsed", "tensorboard", "wandb"),
})
# Written by a library, which leaves links to its own caches, and never read by this program.
UNREAD = frozenset({"tensorboard", "wandb"})


def sign(file: Path) -> None:
    """Seal what this user has just written; where no key can be kept, do without.

    Raises:
        RecipeError: others can read the key.
    """
    try:
        key = _made_key()
    except RecipeError:
        raise
    except (OSError, RuntimeError, ValueError):  # no home, or one that may not be written here
        return
    if len(key) != KEY_BYTES:  # somebody's own file of that name, or half of one
        return
    write_atomically(seal_of(file), f"{_mac(key, file.read_bytes())}\n")


def is_own(file: Path) -> bool:
    """Return whether this user, with this home, wrote this very file.

    Raises:
        RecipeError: others can read the key.
    """
    try:
        key = _read_key(_key_file())
        seal = _read(seal_of(file), 2 * KEY_BYTES)
        mac = _mac(key, _read(file, MOST_BYTES))
    except RecipeError:
        raise
    except (OSError, RuntimeError, ValueError):  # no home, no key, no seal, or no file
        return False
    return len(key) == KEY_BYTES and hmac.compare_digest(mac.encode(), seal)


def seal_of(file: Path) -> Path:
    """Where the seal of a file lies."""
    return file.with_name(f"{file.name}{SEAL}")


def _mac(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, sha256).hexdigest()


def _read(file: Path, most_bytes: int) -> bytes:
    with open_regular(file) as stream:
        return stream.read(most_bytes)


def _read_key(file: Path) -> bytes:
    """Read the key, which nobody else may know: whoever does can forge seals.

    Raises:
        RecipeError: it belongs to another user, or others can read it.
    """
    with open_regular(file) as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            way = f"chmod 600 {file}, or name a folder of your own in XDG_STATE_HOME"
            raise RecipeError(str(file), "is a private key that another user can read", way)
        return stream.read(KEY_BYTES)


def _key_file() -> Path:
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = named if named.is_absolute() else Path.home() / ".local" / "state"
    return state / "kochbuch" / "key"


def _made_key() -> bytes:
    """Read the key, or make it: of processes that do so at once one wins, and all read its."""
    file = _key_file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = file.with_name(f".key.{secrets.token_hex(8)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
        try:
            with suppress(FileExistsError):  # another process was first
                os.link(beside, file)
        finally:
            beside.unlink()
    return _read_key(file)


def check_links(run: Path, key: str) -> None:
    """Refuse a run folder in which a link leads out of it, or something waits to be opened.

    What this program never opens is not looked at: see `FOLDERS` and `UNREAD`. The folder
    itself may be reached through a link, and links that stay inside are a run's own.

    Raises:
        RecipeError: the first such link, for who follows it reads, appends to or removes what
            does not belong to the run; a file to append to that has another name, too; or a
            pipe, a socket or a device.
    """
    inside = Path(os.path.realpath(run))
    for file in inside.glob("*.jsonl"):
        if file.lstat().st_nlink > 1 and not file.is_symlink():
            problem = f"{run / file.name} is the file of another name, too (a hard link)"
            raise RecipeError(key, problem, "copy the folder without links: cp -r")
    check_inside(run, key, "run")


def check_inside(folder: Path, key: str, kind: str = "folder") -> None:
    """Refuse a link that leads out of a folder, a pipe, a socket and a device.

    The files of a snapshot in Hugging Face's cache are links to the blobs of its repository.

    Raises:
        RecipeError: the first of them.
    """
    inside = Path(os.path.realpath(folder))
    snapshots, repository = inside.parent, inside.parent.parent
    is_cache = kind == "folder" and snapshots.name == "snapshots"
    is_snapshot = is_cache and _REPOSITORY.match(repository.name)
    for entry in _entries(inside):
        shown = folder / Path(entry.path).relative_to(inside)
        if not entry.is_symlink():
            raise RecipeError(key, f"{shown} is neither a file nor a folder", "remove it")
        target = Path(os.path.realpath(entry.path))
        is_blob = is_snapshot and target.parent == repository / "blobs" and target.is_file()
        if not (target.is_relative_to(inside) or is_blob):
            problem = f"{shown} is a link that leads out of the {kind}, to {target}"
            remedy = "remove the link, or put what it leads to in its place"
            raise RecipeError(key, problem, remedy)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is neither a file nor a folder; what may not be read is left to its reader."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = list(found)
        except OSError:
            continue
        for entry in entries:
            is_top = entry.path == str(folder / entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in UNREAD and (entry.name in FOLDERS or not is_top):
                    waiting.append(entry.path)
            elif is_top and not entry.is_symlink() and not _OWN_FILE.fullmatch(entry.name):
                continue  # a socket or a pipe of another program
            elif not entry.is_file(follow_symlinks=False):
                yield entry
