"""Whose a run folder is: one that this user made here carries a seal that nobody else can make.

``recipe.json`` and ``data.json`` name places, anywhere: in the user's own run these were named
by the user, in any other by somebody else. Beside each lies its seal, ``recipe.json.mac``: an
HMAC of it under a key that never leaves the user's home.
"""

import hmac
import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from components.json_file import MOST_BYTES, open_regular

SEAL = ".mac"  # behind the name of what is sealed
KEY_BYTES = 32


def sign(file: Path) -> None:
    """Seal what this user has just written; where no key can be kept, do without."""
    try:
        key = _made_key()
    except (OSError, RuntimeError, ValueError):  # no home, or one that may not be written here
        return
    if len(key) != KEY_BYTES:  # somebody's own file of that name, or half of one
        return
    seal = seal_of(file)
    beside = seal.with_name(f".{seal.name}.{os.getpid()}")
    beside.write_text(f"{_mac(key, file.read_bytes())}\n", "ascii")
    beside.replace(seal)


def is_own(file: Path) -> bool:
    """Tell whether this user, with this home, wrote this very file."""
    try:
        key = _read(_key_file(), KEY_BYTES)
        seal = _read(seal_of(file), 2 * KEY_BYTES)
        mac = _mac(key, _read(file, MOST_BYTES))
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
    return _read(file, KEY_BYTES)
