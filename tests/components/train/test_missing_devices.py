"""A cluster whose GPUs are gone is not computed on by its CPUs."""

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.schema.sections import Cluster
from components.distributed.devices import check_devices
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
def test_auto_never_falls_to_the_cpu_of_a_cluster_whose_hardware_is_a_gpu() -> None:
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
def test_auto_takes_what_there_is_where_no_profile_misses_it(words: tuple[str, ...]) -> None:
    check_devices(cluster(*words))
