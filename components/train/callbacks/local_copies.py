"""Local copies of a run: their folder on a node, and the identity of the run."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.constants import default_pg_timeout

from components.checkpoint.local_copies import LocalCopies
from components.checkpoint.local_files import own_folder
from components.config.schema.sections import LocalCheckpoints
from components.distributed.collectives import by_first, gather_results
from components.distributed.node_tree import make_node_tree
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.train.module import Pretraining


def make_local_copies(
    module: Pretraining, settings: LocalCheckpoints, folder: Path
) -> LocalCopies:
    """Create the local folders of the run in ``folder`` on all nodes, and connect the ranks."""
    run = by_first(lambda: identify_run(RunFolder(folder)))
    # In tests, several nodes are on one machine: each has its own folder.
    below = (job_folder(os.environ), f"local-{run[:16]}", node_name(os.environ))
    gather_results(lambda: own_folder(Path(settings.folder), *below))
    per_node, timeout = module.recipe.cluster.devices_per_node, default_pg_timeout
    return LocalCopies(
        folder=Path(settings.folder).joinpath(*below),
        run=run,
        state=module.engine.state,
        group=make_node_tree(ranks_per_node=per_node, timeout=timeout),
        ranks_per_node=per_node,
        timeout=timeout,
        pinned=module.device.type == "cuda",
    )


def identify_run(run: RunFolder) -> str:
    """Return an identifier of a run: its folder, its current recipe file, and its rewinds."""
    status = run.recipe.stat()
    rewound = sum(event["kind"] == "rewind" for event in read_lines(run.events))
    folder_digest = hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()
    return f"{folder_digest} {status.st_ino} {status.st_mtime_ns} {rewound}"


def job_folder(seen: Mapping[str, str]) -> str:
    """Return the name of a job's or user's folder on a node. The job script removes it."""
    job = seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID", "").partition(".")[0]
    return f"kochbuch-{job or f'user-{os.getuid()}'}"
