"""A lost node's ranks go on from what its neighbour kept, bit for bit; else from files."""

import os
import random
import shutil
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from components.checkpoint.local_files import own_folder
from components.errors import RecipeError
from tests.components.checkpoint import local_cases as cases
from tests.components.checkpoint.local_cases import Went
from tests.components.checkpoint.test_checkpoint import LAYOUTS, PARTS
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.ranks import Ranks

STEPS, END = 2, 4
ZERO, NODES = LAYOUTS["zero 3"], ("node-0", "node-1")
RUN = "one run"
ROUNDED = Layout(
    replicate=2, shard=2, zero=1, weights="bfloat16", accumulate="float32", reduce="float32"
)


@pytest.fixture(scope="module")
def kept(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Layout], Path]:
    @cache
    def keep_in(layout: Layout) -> Path:
        folder = tmp_path_factory.mktemp("nodes")
        torch.save(ranks(cases.keep, PARTS, layout, folder, STEPS, END), folder / "went")
        return folder

    return keep_in


@pytest.fixture
def left(kept: Callable[[Layout], Path], tmp_path: Path) -> Callable[[Layout], Path]:
    """Give nodes to spoil."""
    return lambda layout: shutil.copytree(kept(layout), tmp_path / "nodes")


def go_on(
    ranks: Ranks, folder: Path, layout: Layout, after: int = 0, run: str = RUN
) -> list[Went]:
    return ranks(cases.go_on, PARTS, layout, folder, END, after, run)


def assert_as_uninterrupted(went: list[Went], folder: Path) -> None:
    uninterrupted = torch.load(folder / "went", weights_only=False)
    for one, expected in zip(went, uninterrupted, strict=True):
        assert one.progress == expected.progress
        assert one.losses == expected.losses
        assert one.state.keys() == expected.state.keys()
        assert all(torch.equal(one.state[name], expected.state[name]) for name in one.state)


def lose_node(folder: Path) -> None:
    shutil.rmtree(folder / "node-1")


def change_order(folder: Path) -> None:
    (folder / "node-0").rename(folder / "other")
    (folder / "node-1").rename(folder / "node-0")
    (folder / "other").rename(folder / "node-1")


def cut_short(folder: Path) -> None:
    file = next((folder / "node-0").glob("rank-00000-*"))
    os.truncate(file, file.stat().st_size // 2)


def flip_bit(folder: Path) -> None:
    file = next((folder / "node-1").glob("rank-00003-*"))
    content = bytearray(file.read_bytes())
    content[-9] ^= 4
    file.write_bytes(content)


def replace_by_pickle(folder: Path) -> None:
    torch.save({"key": 1}, next((folder / "node-0").glob("rank-00001-*")))


def nothing(folder: Path) -> None:
    """Let all ranks have been killed and no node be lost."""


@pytest.mark.quick("lose_node-zero 3", "nothing-rounded", "flip_bit-zero 3")
@pytest.mark.parametrize(
    ("befalls", "layout"),
    [
        *product([nothing, lose_node], [*LAYOUTS, "rounded"]),
        *((one, "zero 3") for one in (change_order, cut_short, flip_bit, replace_by_pickle)),
    ],
)
def test_a_run_resumed_from_local_copies_has_the_same_bits(ranks, left, layout, befalls):
    chosen = ROUNDED if layout == "rounded" else LAYOUTS[layout]
    folder = left(chosen)
    befalls(folder)
    assert_as_uninterrupted(go_on(ranks, folder, chosen), folder)


def test_without_both_copies_of_a_rank_local_copies_are_not_used(ranks, left):
    folder = left(ZERO)
    for file in folder.glob("node-*/rank-00002-*"):  # of one rank, on both nodes
        os.truncate(file, 100)
    assert {one.progress for one in go_on(ranks, folder, ZERO)} == {None}
    lose_node(folder)
    shutil.rmtree(folder / "node-0")
    assert {one.progress for one in go_on(ranks, folder, ZERO)} == {None}


@pytest.mark.parametrize(
    ("layout", "after", "run"),
    [("tensor, zero 3", 0, RUN), ("zero 3", 10 * STEPS, RUN), ("zero 3", 0, "another run")],
    ids=["another layout", "a checkpoint as new", "another run"],
)
def test_local_copies_of_another_run_or_layout_are_ignored(ranks, left, layout, after, run):
    went = go_on(ranks, left(ZERO), LAYOUTS[layout], after, run)
    assert {one.progress for one in went} == {None}


def test_one_generation_is_kept_on_two_nodes(kept: Callable[[Layout], Path]) -> None:
    names = [sorted(one.name[:26] for one in (kept(ZERO) / node).iterdir()) for node in NODES]
    assert names == [[f"rank-{rank:05d}-{20:015d}" for rank in range(4)]] * 2


@pytest.fixture(scope="module")
def two_steps(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Keep two generations, each in nodes of its own."""
    folders = tmp_path_factory.mktemp("former"), tmp_path_factory.mktemp("new")
    for step, folder in enumerate(folders, start=1):
        ranks(cases.keep_step, folder, step)
    return folders


@pytest.mark.quick("written-3", "written-8", "gone-1")
@pytest.mark.parametrize("done", range(9))
@pytest.mark.parametrize("moment", ["written", "gone"])
def test_a_kill_between_files_leaves_one_complete_generation(
    ranks, two_steps, tmp_path, moment, done
):
    """So many files of the new one are written, or so many of the former gone already."""
    former, new = (sorted(one.glob("node-*/rank-*")) for one in two_steps)
    former.sort(key=lambda file: int(file.name[5:10]) * 5 % 8)  # ranks write in no order
    left = [*former, *new[:done]] if moment == "written" else [*former[done:], *new]
    for file in left:
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / file.parent.name)
    for file in new[done : done + 1]:  # of which half is there
        half = file.read_bytes()[: file.stat().st_size // 2]
        (tmp_path / file.parent.name / f".{file.name}").write_bytes(half)
    owners = {file.name[5:10] for file in left if file in new}
    expected = 2 if len(owners) == 4 else 1
    assert ranks(cases.newest_step, tmp_path) == [(expected, {float(expected)})] * 4


@pytest.mark.long
@pytest.mark.parametrize("victims", [(0,), (2, 3), (0, 1, 2, 3)])
def test_a_kill_loses_nothing_that_was_kept(ranks, tmp_path, victims):
    context, length = get_context("forkserver"), 50_000
    several = [
        context.Process(target=cases.keep_until_killed, args=(rank, tmp_path, length))
        for rank in range(4)
    ]
    for one in several:
        one.start()
    while not (tmp_path / "kept-0").exists():
        time.sleep(0.01)
    time.sleep(random.Random(len(victims)).uniform(0.1, 0.6))
    for victim in victims:
        several[victim].kill()
    for one in several:
        one.join(300)
        assert not one.is_alive(), "a rank outlived its peer"
    if victims == (2, 3):
        lose_node(tmp_path)
    kept = max(int(file.read_text() or 0) for file in tmp_path.glob("kept-*"))
    found = ranks(cases.newest_step, tmp_path, length)
    ((step, values),) = {(step, *values) for step, values in found}
    assert step >= kept > 0
    assert values == step


def test_replicated_tensors_are_copied_once(ranks: Ranks, tmp_path: Path) -> None:
    sizes = ranks(cases.kept_bytes, PARTS, Layout(replicate=4), tmp_path)
    kept, held = sum(one for one, _ in sizes), sum(one for _, one in sizes)
    assert kept == pytest.approx(held / 4, rel=0.02)  # tensors begin at multiples of 16


@pytest.mark.parametrize("full", [0, 3])
def test_without_room_on_one_node_former_copies_stay(ranks: Ranks, tmp_path, full: int) -> None:
    problem = f"{tmp_path / f'node-{full // 2}'}: No space left on device"
    assert ranks(cases.keep_where_one_is_full, tmp_path, full) == [[None, problem]] * 4
    assert ranks(cases.newest_step, tmp_path) == [(1, {1.0})] * 4


def test_removed_copies_leave_no_folder(ranks: Ranks, tmp_path: Path) -> None:
    ranks(cases.forget, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch) -> None:
    made = own_folder(tmp_path, "kochbuch", "run")
    assert [one.stat().st_mode & 0o777 for one in (made, made.parent)] == [0o700] * 2
    with monkeypatch.context() as foreign:
        foreign.setattr(os, "getuid", lambda: 1 + os.geteuid())
        with pytest.raises(RecipeError, match=r"checkpoint\.local\.folder: .*kochbuch belongs"):
            own_folder(tmp_path, "kochbuch")
    (tmp_path / "kochbuch").chmod(0o777)
    with pytest.raises(RecipeError, match=r"other users can write to .*kochbuch"):
        own_folder(tmp_path, "kochbuch")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(RecipeError, match="belongs to another user"):
        own_folder(tmp_path, "link")
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"cannot create .*file/below: Not a directory"):
        own_folder(tmp_path / "file" / "below", "kochbuch")
