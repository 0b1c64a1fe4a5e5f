"""A cluster whose GPUs are gone is not computed on by its CPUs; which devices have float8."""

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.schema.sections import Cluster
from components.distributed.devices import check_devices, check_float8_device, compute_dtype
from components.errors import RecipeError

JUWELS = ("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1")


def cluster(*words: str) -> Cluster:
    return compose_recipe(read_point(["recipe=teuken7b", *words])).cluster


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let torch see so many NVIDIA GPUs, and no others."""
    number = int(request.param)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)


@pytest.mark.parametrize("see", [0], indirect=True)
@pytest.mark.usefixtures("see")
def test_auto_does_not_choose_the_cpu_of_a_gpu_cluster() -> None:
    with pytest.raises(RecipeError) as caught:
        check_devices(cluster(*JUWELS, "cluster.device=auto"))
    assert str(caught.value) == (
        f"cluster.device: auto, but torch {torch.__version__} sees no GPU here, and the "
        "profile's hardware is NVIDIA A100-40GB\n  report this to the site if "
        "other nodes have 1, load a torch built for the device, or set cluster.device=cpu"
    )


@pytest.mark.parametrize(
    ("see", "words"),
    [
        (1, (*JUWELS, "cluster.device=auto")),
        (0, (*JUWELS, "cluster.device=cpu")),
        (0, (*JUWELS, "cluster.device=auto", "cluster.hardware=none")),
        (0, ("cluster.device=auto",)),
    ],
    ids=["the GPU is there", "the CPU is asked for", "no profile", "this machine"],
    indirect=["see"],
)
@pytest.mark.usefixtures("see")
def test_auto_chooses_the_available_device(words: tuple[str, ...]) -> None:
    check_devices(cluster(*words))


@pytest.mark.parametrize(
    ("capability", "has"), [((8, 0), False), ((8, 9), True), ((9, 0), True)]
)
def test_an_old_gpu_without_float8_is_refused(monkeypatch, capability, has):
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


def test_an_intel_gpu_has_no_float8_and_a_cpu_emulates_it():
    with pytest.raises(RecipeError, match=r"float8, but an xpu device has no float8 products"):
        check_float8_device(torch.device("xpu", 0))
    check_float8_device(torch.device("cpu"))
    for kind in ("cpu", "cuda", "xpu"):
        assert compute_dtype("float8", torch.device(kind)) is torch.bfloat16
