"""One role of a dry run: ``python -m components.dryrun.role FOLDER RANK``.

The folder is a run folder, of which the frozen recipe is read as ranks do. What the rank's step
takes is written there as JSON.
"""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from components.config.schema.recipe import read_recipe
from components.dryrun.collectives import CollectiveKind, sent_bytes
from components.dryrun.rehearsal import StepRehearsal, rehearse
from components.run.folder import RunFolder


def main(words: Sequence[str]) -> None:
    """Rehearse and write ``role-RANK.json``."""
    folder, rank = RunFolder(Path(words[0])), int(words[1])
    began = time.perf_counter()
    found = as_json(rehearse(read_recipe(folder.recipe), rank))
    found["seconds"] = time.perf_counter() - began
    found["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    folder.write_json(f"role-{rank}.json", found)


def as_json(found: StepRehearsal) -> dict[str, Any]:
    """Return plain numbers, in bytes and FLOPs of one step."""
    return {
        "microbatches": found.microbatches,
        "rehearsed_microbatches": found.rehearsed,
        "peaks": {
            phase: {**asdict(peak), "bytes": peak.bytes} for phase, peak in found.peaks.items()
        },
        "collectives": [_call(kind, found) for kind in found.calls],
        "flops": found.flops,
    }


def _call(kind: CollectiveKind, found: StepRehearsal) -> dict[str, Any]:
    return {
        **kind._asdict(),
        "count": found.calls[kind],
        "bytes": found.bytes[kind],
        "sent_bytes": round(sent_bytes(kind, found.bytes[kind])),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
