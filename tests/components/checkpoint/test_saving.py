"""Steps go on while a checkpoint is written; what cannot be written leaves the one before."""

import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from safetensors.torch import load_file

from components.checkpoint.choice import check_alone
from components.checkpoint.copy_out import check_target
from components.checkpoint.metadata import complete_checkpoints, newest_checkpoint, read_marker
from components.checkpoint.retention import Policy
from components.checkpoint.saving import HostBuffers
from components.errors import RecipeError
from tests.components.checkpoint import killed
from tests.components.checkpoint import saver_cases as cases
from tests.components.checkpoint.numbers import Counted
from tests.components.distributed.ranks import Ranks


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.usefixtures("alone")
def test_later_steps_do_not_change_a_checkpoint(tmp_path: Path) -> None:
    finished = cases.save_steps(tmp_path, range(1, 5))
    assert [one.progress.step for one in finished] == [1, 2, 3, 4]
    assert cases.loaded(tmp_path) == (4, {4.0}, [])
    for one, step in zip(sorted(complete_checkpoints(tmp_path)), range(1, 5), strict=True):
        (file,) = one.glob("*.safetensors")
        assert all(bool((one == step).all()) for one in load_file(file).values())


@pytest.mark.usefixtures("alone")
def test_synchronous_and_asynchronous_saves_write_the_same_bytes(tmp_path: Path) -> None:
    markers = []
    ways: dict[str, dict[str, Any]] = {"waits": {"stager": None}, "goes on": {}}
    for name, changes in ways.items():
        (tmp_path / name).mkdir()
        (finished,) = cases.save_steps(tmp_path / name, range(1, 2), **changes)
        markers.append(check_alone(finished.folder))
        assert finished.bytes == markers[-1].total_bytes
        assert 0 < finished.stall_seconds <= finished.seconds
        assert (finished.stall_seconds == finished.seconds) == (name == "waits")
    assert markers[0] == markers[1]


@pytest.mark.parametrize("files", [1, 3, 9])
def test_ranks_share_as_many_files_as_they_may_have(ranks: Ranks, tmp_path, files: int) -> None:
    ranks(cases.save_in_files, tmp_path, files)
    (checkpoint,) = tmp_path.iterdir()
    assert len(list(checkpoint.glob("*.safetensors"))) == min(files, 4)
    assert ranks(cases.loaded, tmp_path) == [(1, {1.0}, [])] * 4
    for name, sections in check_alone(checkpoint).files.items():
        assert len(sections) >= 4 // files, name


@pytest.mark.usefixtures("alone")
def test_snapshots_of_weights_are_kept_with_full_checkpoints(tmp_path: Path) -> None:
    policy, state = Policy(last=1, every_tokens="none", best=0), Counted(0)
    with cases.saving(tmp_path, policy=policy) as saver:
        for step in (1, 2, 3):
            state.become(step)
            cases.begin(saver, state, step, kinds=["tokens", "weights"], held_out_loss=2.0)
        saver.wait_for_save()
    weights = [f"weights-{tokens:015d}" for tokens in (10, 20, 30)]
    assert names_in(tmp_path) == [f"tokens-{30:015d}", *weights]
    for step, name in enumerate(weights, start=1):
        marker = check_alone(tmp_path / name)
        assert (marker.kind, marker.held_out_loss) == ("weights", 2.0)
        (file,) = (tmp_path / name).glob("*.safetensors")
        found = load_file(file)
        assert set(found) == {"model.split", "model.shared"}
        assert all(bool((tensor == step).all()) for tensor in found.values())


@pytest.mark.usefixtures("alone")
def test_a_loaded_checkpoint_is_not_saved_again(tmp_path: Path) -> None:
    cases.save_steps(tmp_path, range(1, 2))
    (checkpoint,) = tmp_path.iterdir()
    before = read_marker(checkpoint), checkpoint.stat().st_mtime_ns
    (finished,) = cases.save_steps(tmp_path, range(1, 2))
    assert finished.folder == checkpoint
    assert (read_marker(checkpoint), checkpoint.stat().st_mtime_ns) == before


def test_permanent_checkpoints_are_copied_and_replace_old_copies(ranks, tmp_path):
    scratch, store, other = (tmp_path / name for name in ("scratch", "store", "other"))
    for folder in (scratch, other):
        folder.mkdir()
    check_target(store)
    ranks(cases.save_and_copy, scratch, store)
    assert names_in(store) == names_in(scratch) == [f"tokens-{n:015d}" for n in (30, 60)]
    first = {one.name: read_marker(scratch / one.name) for one in store.iterdir()}
    assert first == {one.name: check_alone(one) for one in store.iterdir()}
    ranks(cases.save_and_copy, other, store, 12)
    for one in store.iterdir():
        assert check_alone(one) == read_marker(other / one.name) != first[one.name]
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"checkpoint\.copy_to: cannot create .*file/store"):
        check_target(tmp_path / "file" / "store")


@pytest.mark.usefixtures("alone")
def test_a_copy_with_other_bytes_is_refused(tmp_path, monkeypatch):
    def copy_other_bytes(source: BinaryIO, target: BinaryIO, length: int) -> None:
        content = source.read()
        target.write(content[:-1] + bytes([content[-1] ^ 1]))

    monkeypatch.setattr(shutil, "copyfileobj", copy_other_bytes)
    for name in ("scratch", "store"):
        (tmp_path / name).mkdir()
    with pytest.raises(RecipeError, match="safetensors"):
        cases.save_and_copy(tmp_path / "scratch", tmp_path / "store")
    assert not list(complete_checkpoints(tmp_path / "store"))


@pytest.mark.parametrize("full", [(0,), (1, 2), (0, 1, 2, 3)])
def test_all_ranks_raise_the_error_of_a_full_disk(ranks, tmp_path, full):
    (said,) = set(ranks(cases.save_where_it_is_full, tmp_path, full))
    assert f"0000{min(full) + 1}-of-00004.safetensors: cannot be written: File too l" in said
    assert "then resume the run: the previous checkpoint is complete" in said
    assert ranks(cases.loaded, tmp_path, cases.LARGE) == [(1, {1.0}, [])] * 4


@pytest.mark.long
def test_a_save_waits_until_the_disk_has_room(ranks: Ranks, tmp_path) -> None:
    began = time.perf_counter()
    assert ranks(cases.save_where_room_comes_back, tmp_path, 1.0) == [("File too large",)] * 4
    assert time.perf_counter() - began > 1.0
    assert ranks(cases.loaded, tmp_path, cases.LARGE) == [(1, {1.0}, [])] * 4


@pytest.mark.usefixtures("alone")
def test_an_error_names_a_folder_without_write_permission(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    said = cases.save_as_nobody(folder)
    assert f"{folder}: cannot be written: Permission denied\n  make the folder writable" in said
    assert newest_checkpoint(folder) is None


@pytest.mark.long
def test_a_save_waits_until_the_file_system_returns(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    began = time.perf_counter()
    figures = ranks(cases.save_while_it_is_away, folder, 1.5, 60.0)
    assert time.perf_counter() - began > 1.5
    for stall, waited in figures:
        assert stall < 1.0 < waited  # for the first save, and no step for the disk
    assert names_in(folder) == [f"tokens-{tokens:015d}" for tokens in (10, 20, 30)]
    assert ranks(cases.loaded, folder, cases.LARGE) == [(3, {3.0}, [])] * 4


@pytest.mark.long
def test_a_missing_file_system_is_an_error_of_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (said,) = set(ranks(cases.save_while_it_is_away, folder, 2.0, 0.2))
    assert "cannot be written: No such file or directory" in said
    assert ranks(cases.loaded, folder, cases.LARGE) == [(1, {1.0}, [])] * 4


@pytest.mark.usefixtures("alone")
def test_a_failure_is_seen_without_waiting(tmp_path: Path) -> None:
    state = Counted(1, cases.LARGE)
    with cases.saving(tmp_path / "missing") as saver:
        assert not saver.has_failed
        cases.begin(saver, state, 1)
        while not saver.has_failed:
            assert saver.poll_finished() == []
            time.sleep(0.01)
        assert saver.poll_finished() == []
        with pytest.raises(RecipeError, match="cannot be written: No such file"):
            saver.wait_for_save()
        assert not saver.has_failed


CPU = torch.device("cpu")


def test_staged_tensors_are_copies_in_reused_buffers():
    tensor = torch.arange(6.0).reshape(2, 3)
    (staged,) = HostBuffers(CPU).copy_to_host([tensor])
    tensor.fill_(-1)
    assert torch.equal(staged, torch.arange(6.0).reshape(2, 3))
    buffers = HostBuffers(CPU)
    (full,), (weights,) = buffers.copy_to_host([tensor]), buffers.copy_to_host([tensor])
    assert full.data_ptr() != weights.data_ptr()  # of one save
    buffers, tensors = HostBuffers(CPU), [torch.ones(4), torch.ones(4, dtype=torch.bfloat16)]
    before = {one.data_ptr() for one in buffers.copy_to_host(tensors)}
    for number in (2, 3):  # torch's own stager could not be asked again
        buffers.release_buffers()
        later = buffers.copy_to_host([one.fill_(number) for one in tensors])
        assert {one.data_ptr() for one in later} == before
        assert all(bool((one == number).all()) for one in later)


@pytest.mark.long
def test_a_killed_save_leaves_complete_checkpoints(tmp_path: Path) -> None:
    left = [found for _, found in killed.rounds(tmp_path, 3, seed=0)]
    assert all(one.is_whole for one in left), left
    assert any(one.step for one in left), "nothing was ever saved"
