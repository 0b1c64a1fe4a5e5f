"""Caches of kernels have their folders, and no other user's; torch's allocator its settings."""

import os
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.train.ranks import allocator_variables, cache_variables, make_cache_folders


def test_every_folder_that_is_named_is_made_and_no_other(tmp_path: Path) -> None:
    named = {name: str(tmp_path / "cache" / name) for name in cache_variables("xpu")}
    make_cache_folders(named | {"OTHER_CACHE": str(tmp_path / "other")})
    make_cache_folders(named)  # by the node's other ranks
    assert {file.name for file in (tmp_path / "cache").iterdir()} == set(named)
    assert not (tmp_path / "other").exists()


def test_each_kind_of_device_has_caches_of_its_own() -> None:
    assert "CUDA_CACHE_PATH" in cache_variables("cuda")
    assert {"NEO_CACHE_DIR", "SYCL_CACHE_DIR"} <= set(cache_variables("xpu"))
    assert set(cache_variables("cpu")) == set(cache_variables("cuda")) - {"CUDA_CACHE_PATH"}


def test_memory_of_nvidia_s_devices_grows_unless_the_user_says_otherwise() -> None:
    grows = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert allocator_variables("cuda", {}) == grows
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        assert allocator_variables("cuda", {name: "max_split_size_mb:512"}) == {}
    assert allocator_variables("cpu", {}) == allocator_variables("xpu", {}) == {}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen = {"TRITON_CACHE_DIR": str(tmp_path / "file" / "triton")}
    message = (
        r"TRITON_CACHE_DIR: cannot create \S+/triton: Not a directory\n  set another folder"
    )
    with pytest.raises(RecipeError, match=message):
        make_cache_folders(seen)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_another_user_s_folder_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12_345, -1)
    with pytest.raises(RecipeError, match=r"TRITON_CACHE_DIR: \S+ belongs to another user"):
        make_cache_folders({"TRITON_CACHE_DIR": str(tmp_path)})
