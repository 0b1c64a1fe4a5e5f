"""SHA-256 of a checkpoint's files: no rank hashes what another one does.

A rank hashes the files that it wrote, which its node may still have in memory; before loading,
the files are dealt to the ranks like cards.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from components.errors import RecipeError


class NotingWriter(HuggingFaceStorageWriter):
    """Write safetensors as torch does, and note which files this rank has written.

    The names are taken from torch's own receipts: how it names files is its business.
    """

    def __init__(self, *, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.written: tuple[str, ...] = ()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        future = super().write_data(plan, planner)
        self.written = tuple(sorted({one.storage_data.relative_path for one in future.wait()}))
        return future


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Read files back right after they were written.

    Raises:
        RecipeError: one of them is gone or cannot be read.
    """
    remedy = "mend the file system, then resume the run: the checkpoint before is whole"
    return {name: _sha256(folder / name, remedy) for name in names}


def check_names(folder: Path, names: Iterable[str]) -> None:
    """Compare what is in a folder with the names of what all ranks wrote into it.

    Raises:
        RecipeError: ranks wrote to other folders of the same name, or others wrote to this one.
    """
    found = {file.name for file in folder.glob("*.safetensors")}
    named = set(names)
    for name in sorted(named - found):
        problem = "was written by a rank, but rank 0 does not see it"
        remedy = "put the run on a file system that all nodes share"
        raise RecipeError(str(folder / name), problem, remedy)
    for name in sorted(found - named):
        raise RecipeError(str(folder / name), "was written by no rank", "move it elsewhere")


def check_files(checkpoint: Path, digests: Mapping[str, str], *, rank: int, ranks: int) -> None:
    """Check one rank's share of the files, and as rank 0 that there are no others.

    Raises:
        RecipeError: a file is missing or too many, or its contents are not what was written.
    """
    if rank == 0:
        for file in sorted(checkpoint.glob("*.safetensors")):
            if file.name not in digests:
                problem, remedy = "was not written with this checkpoint", "move it elsewhere"
                raise RecipeError(str(file), problem, remedy)
    remedy = f"remove {checkpoint}: the checkpoint before it is taken then"
    for name in sorted(digests)[rank::ranks]:
        file = checkpoint / name
        if not file.is_file():
            raise RecipeError(str(file), "is missing", remedy)
        if _sha256(file, remedy) != digests[name]:
            raise RecipeError(str(file), "was changed after it was written", remedy)


def _sha256(file: Path, remedy: str) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise RecipeError(str(file), problem, remedy) from error
