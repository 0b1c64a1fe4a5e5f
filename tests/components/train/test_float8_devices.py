"""Which devices compute in float8; what torch answers about them is planted."""

import pytest
import torch

from components.distributed.devices import check_float8_device, compute_dtype
from components.errors import RecipeError


@pytest.mark.parametrize(
    ("capability", "has"), [((8, 0), False), ((8, 9), True), ((9, 0), True)]
)
def test_a_gpu_without_products_in_float8_is_named(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    if has:
        check_float8_device(torch.device("cuda", 0))
        return
    message = (
        r"precision\.compute: float8, but A GPU of compute capability 8\.0 has no float8 "
        r"products\n"
        r"  set precision\.compute=bfloat16, or cluster\.device=cpu, which emulates float8"
    )
    with pytest.raises(RecipeError, match=message):
        check_float8_device(torch.device("cuda", 0))


def test_an_intel_gpu_has_no_products_in_float8_and_a_cpu_emulates_them() -> None:
    with pytest.raises(RecipeError, match=r"float8, but an xpu device has no float8 products"):
        check_float8_device(torch.device("xpu", 0))
    check_float8_device(torch.device("cpu"))


def test_what_is_not_in_float8_is_in_bfloat16() -> None:
    for kind in ("cpu", "cuda", "xpu"):
        assert compute_dtype("float8", torch.device(kind)) is torch.bfloat16
