"""One rank of several runs, one after the other: ``guarded_ranks.py FOLDER [FOLDER ...]``."""

import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.rendezvous import rendezvous

from components.config.check import read_recipe
from components.run.folder import RunFolder
from components.train.fit import fit_phase


def main(paths: list[str]) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for path in paths:
        # Under the keys of the run before, a rank would wait where nobody listens.
        store, _, _ = next(rendezvous("env://", rank, ranks))
        dist.init_process_group(
            "gloo", store=PrefixStore(path, store), rank=rank, world_size=ranks
        )
        folder = RunFolder(Path(path))
        fit_phase(folder, read_recipe(folder.recipe))


if __name__ == "__main__":
    main(sys.argv[1:])
