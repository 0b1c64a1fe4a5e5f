"""NVML's counter, with NVML's answers planted; and this machine's own answer."""

from types import SimpleNamespace

import pytest

from components.energy import devices
from components.energy.counters import NoCounterError
from components.energy.devices import NvidiaCounter

UUID = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"


class Refused(Exception):  # noqa: N818 - stands for NVMLError, whose name is NVIDIA's
    """What NVML raises."""


class NotSupported(Refused):
    pass


class NotThere(Refused):
    pass


class Answers(SimpleNamespace):
    """NVML as it answers for one GPU; an answer that is an error is raised."""

    NVMLError, NVMLError_NotSupported = Refused, NotSupported
    NVMLError_FunctionNotFound = NotThere
    NVML_DEVICE_MIG_ENABLE = 1
    starts: object = None
    mig: object = (0, 0)
    energy: object = 0

    def nvmlInit(self) -> object:  # noqa: N802 - NVIDIA's name
        return answer(self.starts)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802 - NVIDIA's name
        return uuid if uuid == f"GPU-{UUID}" else answer(Refused("Not Found"))

    def nvmlDeviceGetMigMode(self, handle: object) -> object:  # noqa: N802 - NVIDIA's name
        return answer(self.mig)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> object:  # noqa: N802 - NVIDIA's name
        assert handle == f"GPU-{UUID}"
        return answer(self.energy)


def answer(found: object) -> object:
    if isinstance(found, Exception):
        raise found
    return found


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(devices, "pynvml", answers)
    return answers


@pytest.mark.parametrize("mig", [(0, 1), NotSupported("Not Supported"), NotThere("Not Found")])
def test_millijoules_of_a_whole_gpu_are_read(nvml: Answers, mig: object) -> None:
    nvml.mig = mig
    counter = NvidiaCounter(uuid=UUID)
    nvml.energy = 126_272_101_025
    assert counter.read_joules() == 126_272_101.025


def test_a_gpu_that_stops_telling_says_so(nvml: Answers) -> None:
    counter = NvidiaCounter(uuid=UUID)
    nvml.energy = Refused("GPU is lost")
    with pytest.raises(NoCounterError, match="NVML: GPU is lost"):
        counter.read_joules()


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"starts": Refused("Driver Not Loaded")}, "NVML: Driver Not Loaded"),
        ({"energy": NotSupported("Not Supported")}, "NVML: Not Supported"),
        ({"mig": (1, 1)}, "MIG divides this GPU"),
        ({"mig": Refused("Unknown Error")}, "NVML: Unknown Error"),
    ],
)
def test_what_counts_no_whole_gpu_is_no_counter(
    nvml: Answers, planted: dict[str, object], said: str
) -> None:
    nvml.__dict__.update(planted)
    with pytest.raises(NoCounterError, match=said):
        NvidiaCounter(uuid=UUID)


def test_an_instance_of_a_divided_gpu_is_not_found(nvml: Answers) -> None:
    with pytest.raises(NoCounterError, match="NVML: Not Found"):
        NvidiaCounter(uuid="another")


def test_without_its_binding_there_is_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "pynvml", None)
    with pytest.raises(NoCounterError, match="nvidia-ml-py is not installed"):
        NvidiaCounter(uuid=UUID)


def test_a_machine_without_such_a_gpu_says_no_counter() -> None:
    with pytest.raises(NoCounterError, match=r"NVML: |not installed") as found:
        NvidiaCounter(uuid="00000000-0000-0000-0000-000000000000")
    assert "\n" not in str(found.value)


def test_the_binding_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml", reason="a site's own packages may lack the binding")
    used = {name for name in vars(Answers) if name.startswith(("nvml", "NVML"))}
    assert used
    assert used <= set(vars(pynvml))
