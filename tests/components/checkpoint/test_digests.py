"""Every file is hashed once, by one rank, and what is wrong with it stops all of them."""

import hashlib
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from components.checkpoint.choice import check_alone
from components.checkpoint.metadata import MARKER, newest_checkpoint, read_marker
from components.errors import RecipeError
from tests.components.checkpoint import digest_cases as cases
from tests.components.distributed.ranks import Ranks

ABOUT_ITSELF = ("ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*ABOUT_ITSELF)  # torch's own, while it saves and loads


COUNTS = (1, 2, 4)


@pytest.fixture(scope="module")
def groups(two_ranks: Ranks, four_ranks: Ranks) -> Iterator[dict[int, Ranks]]:
    with Ranks(1) as one:
        yield {1: one, 2: two_ranks, 4: four_ranks}


def saved_by(ranks: Ranks, count: int, folder: Path) -> Path:
    assert not any(ranks(cases.save, folder, count))  # nothing is read back
    (checkpoint,) = folder.iterdir()
    return checkpoint


def names_in(checkpoint: Path) -> list[str]:
    return sorted(file.name for file in checkpoint.glob("*.safetensors"))


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.quick("2")
@pytest.mark.parametrize("count", COUNTS)
def test_the_marker_has_the_digest_of_every_file(groups, count, tmp_path):
    checkpoint = saved_by(groups[count], count, tmp_path)
    digests = {
        name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        for name in names_in(checkpoint)
    }
    assert len(digests) == count
    marker = read_marker(checkpoint)
    assert {name: one.sha256 for name, (one,) in marker.files.items()} == digests
    assert marker.progress == cases.PROGRESS


def test_ranks_with_nothing_to_write_leave_no_file(ranks: Ranks, tmp_path: Path) -> None:
    ranks(cases.save, tmp_path, 0)
    (checkpoint,) = tmp_path.iterdir()
    (name,) = names_in(checkpoint)
    assert [*chain(*ranks(cases.load, checkpoint, 0))] == [name]


@pytest.mark.parametrize("readers", COUNTS)
@pytest.mark.parametrize("writers", COUNTS)
def test_loading_hashes_every_file_once_in_even_shares(groups, writers, readers, tmp_path):
    checkpoint = saved_by(groups[writers], writers, tmp_path)
    hashed = groups[readers](cases.load, checkpoint, writers)
    assert sorted(chain(*hashed)) == names_in(checkpoint)
    assert max(map(len, hashed)) == max(1, writers // readers)


@pytest.mark.parametrize("number", [0, 3])
def test_a_damaged_byte_stops_all_ranks(ranks: Ranks, number: int, tmp_path) -> None:
    checkpoint = saved_by(ranks, 4, tmp_path)
    file = checkpoint / names_in(checkpoint)[number]
    damage(file)
    said = ranks(cases.refused, cases.load, checkpoint, 4)
    assert said == 4 * [
        f"{file}: was changed after it was written\n"
        f"  remove {checkpoint} to use the checkpoint before it"
    ]
    with pytest.raises(RecipeError, match="was changed after it was written") as alone:
        check_alone(checkpoint)
    assert str(alone.value) == said[0]
    other = checkpoint / names_in(checkpoint)[1]
    damage(other)
    (said,) = set(ranks(cases.refused, cases.load, checkpoint, 4))
    assert said.startswith(f"{min(file, other)}: was changed")


def test_missing_extra_and_cut_files_stop_all_ranks(ranks: Ranks, tmp_path) -> None:
    checkpoint = saved_by(ranks, 4, tmp_path)
    last = checkpoint / names_in(checkpoint)[-1]
    last.rename(checkpoint / "other.safetensors")
    (said,) = set(ranks(cases.refused, cases.load, checkpoint, 4))
    assert said.startswith(f"{checkpoint / 'other.safetensors'}: is not part of this")
    (checkpoint / "other.safetensors").unlink()
    (said,) = set(ranks(cases.refused, cases.load, checkpoint, 4))
    assert said.startswith(f"{last}: is missing")
    marker = checkpoint / MARKER
    marker.write_text(marker.read_text()[:-9])
    (said,) = set(ranks(cases.refused, cases.load, checkpoint, 4))
    assert said.startswith(f"{marker}: is not JSON: ")
    assert f"remove {checkpoint}" in said


@pytest.mark.parametrize("loser", [0, 3])
def test_a_rank_whose_file_vanishes_leaves_no_checkpoint(ranks, loser, tmp_path):
    (said,) = set(ranks(cases.refused, cases.save_while_a_file_vanishes, tmp_path, loser))
    assert "was written by another rank, but rank 0 cannot see" in said
    assert not list(tmp_path.rglob(MARKER))
    assert newest_checkpoint(tmp_path) is None
    checkpoint = saved_by(ranks, 4, tmp_path)  # what was left beside is in nobody's way
    ranks(cases.load, checkpoint, 4)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            cases.save_into_folders_of_their_own,
            r"be written: No such file or directory\n  rest",
        ),
        (cases.save_into_folders_of_their_own, "a file system that all nodes share"),
        (cases.save_beside_a_stranger, r"stranger\.safetensors: was not written by any rank\n"),
    ],
)
def test_an_unshared_folder_and_a_foreign_file_prevent_a_marker(ranks, case, message, tmp_path):
    (said,) = set(ranks(cases.refused, case, tmp_path))
    assert re.search(message, said)
    assert not list(tmp_path.rglob(MARKER))


def test_a_file_in_the_place_of_a_checkpoint_stops_all_ranks(ranks: Ranks, tmp_path) -> None:
    (tmp_path / "tokens-000000000000020").touch()  # no folder can replace a file
    (said,) = set(ranks(cases.refused, cases.save, tmp_path, 4))
    assert f"{tmp_path}: cannot be written: Not a directory" in said
    assert newest_checkpoint(tmp_path) is None


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        yield ranks


@pytest.mark.parametrize("failing", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_all_ranks_raise_the_error_of_the_first_that_has_one(three, failing):
    assert three(cases.agree, ()) == [[0, 10, 20]] * 3  # in their order
    said = three(cases.refused, cases.agree, failing)
    assert said == [f"rank.{failing[0]}: fails\n  mend it"] * 3
