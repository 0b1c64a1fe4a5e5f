"""Local copies of a run: where on a node they lie, and of which run they are."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.constants import default_pg_timeout

from components.checkpoint.local_copies import LocalCopies
from components.checkpoint.local_files import own_folder
from components.config.schema.sections import LocalCheckpoints
from components.distributed.collectives import by_first, together
from components.distributed.node_tree import make_node_tree
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.train.module import Pretraining


def make_local_copies(
    module: Pretraining, settings: LocalCheckpoints, folder: Path
) -> LocalCopies:
    """Make the folders of the run in ``folder`` on all nodes, and connect their ranks.

    Raises:
        RecipeError: on all ranks, one cannot be made, or is not the user's alone.
    """
    run = by_first(lambda: identity(RunFolder(folder)))
    # Where several nodes are one machine, as in tests, each has its own.
    below = (job_folder(os.environ), f"local-{run[:16]}", node_name(os.environ))
    together(lambda: own_folder(Path(settings.folder), *below))
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


def identity(run: RunFolder) -> str:
    """Name a run by its folder, the recipe that it has now, and how often it was rewound."""
    written = run.recipe.stat()
    rewound = sum(one["kind"] == "rewind" for one in read_lines(run.journal))
    where = hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()
    return f"{where} {written.st_ino} {written.st_mtime_ns} {rewound}"


def job_folder(seen: Mapping[str, str]) -> str:
    """Name what a job's script removes from its nodes; outside of jobs, the user's."""
    job = seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID", "").partition(".")[0]
    return f"kochbuch-{job or f'user-{os.getuid()}'}"
