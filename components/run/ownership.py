"""Ownership of a run folder: HMAC seals of this user, and checks for links out of the folder.

``recipe.json`` and ``data.json`` contain arbitrary paths, which are trusted only in the user's
own runs. Each has an HMAC, such as ``recipe.json.mac``, with a key in the user's home. A key
that other users can read is a RecipeError.
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
SEAL = ".mac"  # suffix of the sealed file's name
KEY_BYTES = 32
# Folders of a run in which this program reads, writes or removes files. A run may contain other
# folders (caches, an environment, sockets of other programs), which are never opened.
FOLDERS = frozenset({
    *("checkpoints", "children", "copies", "evaluation", "export", "hangs", "jobs"),
    *("preflight", "profile", "ranks", "rehearsed", "tensorboard", "wandb"),
})
# Written by libraries, which create links to their caches. This program never reads them.
UNREAD = frozenset({"tensorboard", "wandb"})


def sign_file(file: Path) -> None:
    """Write the seal of a file that this user has just written; skip it without a key."""
    try:
        key = _made_key()
    except RecipeError:
        raise
    except (OSError, RuntimeError, ValueError):  # no home, or it cannot be written
        return
    if len(key) != KEY_BYTES:  # another file of that name, or an incomplete key
        return
    write_atomically(seal_of(file), f"{_mac(key, file.read_bytes())}\n")


def is_own(file: Path) -> bool:
    """Return whether this user, with this home, wrote the file unchanged since."""
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
    """Return the path of a file's seal."""
    return file.with_name(f"{file.name}{SEAL}")


def _mac(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, sha256).hexdigest()


def _read(file: Path, most_bytes: int) -> bytes:
    with open_regular(file) as stream:
        return stream.read(most_bytes)


def _read_key(file: Path) -> bytes:
    """Read the private key; RecipeError if others can read it, since they could forge seals."""
    with open_regular(file) as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            remedy = f"chmod 600 {file}, or name a folder of your own in XDG_STATE_HOME"
            raise RecipeError(str(file), "is a private key that another user can read", remedy)
        return stream.read(KEY_BYTES)


def _key_file() -> Path:
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = named if named.is_absolute() else Path.home() / ".local" / "state"
    return state / "kochbuch" / "key"


def _made_key() -> bytes:
    """Read the key, or create it. If several processes do so at once, all use the first key."""
    file = _key_file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_name(f".key.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
        try:
            with suppress(FileExistsError):  # another process was first
                os.link(temporary, file)
        finally:
            temporary.unlink()
    return _read_key(file)


def check_links(run: Path, key: str) -> None:
    """Raise if a run folder contains a link out of it, a hard link, a pipe, socket or device.

    Through such a link the program would read, append to or remove other files. Only ``.jsonl``
    files are checked for hard links. Files that this program never opens are not checked: see
    `FOLDERS` and `UNREAD`. The folder itself may be a link, and links within the folder are
    allowed.
    """
    inside = Path(os.path.realpath(run))
    for file in inside.glob("*.jsonl"):
        if file.lstat().st_nlink > 1 and not file.is_symlink():
            problem = f"{run / file.name} is a hard link to another file"
            raise RecipeError(key, problem, "copy the folder without hard links: cp -r")
    check_inside(run, key, "run")


def check_inside(folder: Path, key: str, kind: str = "folder") -> None:
    """Raise if a folder contains a link out of it, a pipe, a socket or a device.

    A snapshot in the Hugging Face cache may link to the blobs of its repository.
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
            remedy = "remove the link, or replace it with a copy of its target"
            raise RecipeError(key, problem, remedy)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield entries that are neither files nor folders. Unreadable folders are skipped."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                entries = list(listing)
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
