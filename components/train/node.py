"""One node of a job whose ranks may start again: ``python -m components.train.node RUN``.

Each node runs torchrun's agent. As many as the recipe has meet at the first node, which has to
live as long as the job; spare ones wait until one of them is lost. When a rank fails all start
again from the newest checkpoint, in the order of the nodes' names.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from components.config.schema.recipe import Recipe, read_recipe
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.terminal import say
from components.train.agent import start
from components.train.ranks import task_number

SILENT_SECONDS = 15  # an agent that says nothing for so long is lost
_BEATS = 3
_WHOLE_JOB_SECONDS = 7 * 24 * 3_600  # a spare node waits as long as there is a job


def run_node(path: Path, seen: Mapping[str, str]) -> int:
    """Run the ranks of this node until the run ends, and return an exit status.

    Raises:
        RecipeError: no launcher says which of the job's nodes this is.
    """
    logs = path / "ranks"
    config = node_config(read_recipe(RunFolder(path).recipe), logs, seen)
    try:
        return start(config, logs, ["-m", "components.train", str(path)])
    except RendezvousError as error:
        say(f"the job's first node, where all others meet, is gone: {error}")
        return 1


def node_config(recipe: Recipe, logs: Path, seen: Mapping[str, str]) -> LaunchConfig:
    """Tell the agent how many nodes there are, where they meet, and by which name they know it.

    Raises:
        RecipeError: no launcher says which of the job's nodes this is.
    """
    cluster = recipe.cluster
    suffix = "" if isinstance(cluster.site, str) else cluster.site.host_suffix
    return LaunchConfig(
        min_nodes=cluster.nodes,
        max_nodes=cluster.nodes,
        nproc_per_node=cluster.devices_per_node,
        run_id=seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID") or "job",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{seen['MASTER_ADDR']}:{seen['MASTER_PORT']}",
        rdzv_configs={
            "is_host": task_number(seen) == 0,
            "timeout": _WHOLE_JOB_SECONDS,
            "keep_alive_interval": SILENT_SECONDS // _BEATS,
            "keep_alive_max_attempt": _BEATS,
        },
        max_restarts=recipe.watchdog.restarts,
        start_method="forkserver",
        local_addr=f"{node_name(seen)}{suffix}",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
    )


if __name__ == "__main__":
    sys.exit(run_node(Path(sys.argv[1]), os.environ))
