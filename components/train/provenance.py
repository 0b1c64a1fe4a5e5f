"""What this run ran on: command, commit, versions, device."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "lightning", "hydra-core", "pydantic", "numpy", "sentencepiece")


def describe_environment(command: list[str]) -> dict[str, Any]:
    """Collect what a reader needs to judge or repeat the run."""
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD").strip() or None,
        "dirty": bool(source_diff()),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def source_diff() -> str:
    """Return what differs from the commit; untracked files by name."""
    untracked = git("ls-files", "--others", "--exclude-standard")
    listed = "".join(f"# untracked: {name}\n" for name in untracked.splitlines())
    return listed + git("diff", "HEAD")


def git(*words: str) -> str:
    """Ask git; a copy without its history has no answer."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a changed file may be of any encoding
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
