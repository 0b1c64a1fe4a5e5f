"""Counters of energy: AMD's and Intel's cards, RAPL's zones, and NVML with planted answers."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from components.energy import devices as counting
from components.energy.counters import Meter, NoCounterError
from tests.components.energy.smi import write_smi
from tests.components.energy.sysfs import write_card, write_zone


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def write_cray(sysfs: Path, joules: list[float]) -> None:
    folder = sysfs / "cray" / "pm_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(joules):
        (folder / f"accel{number}_energy").write_text(f"{one:.0f} J 1414763438433474 us\n")
        (folder / f"accel{number}_power").write_text("300 W 1414763438433474 us\n")
    (folder / "energy").write_text("9999999 J 1414763438433474 us\n")


@pytest.mark.parametrize(
    "second_dies", [(0.0, 0.0), (100.0, 1_000.0)], ids=["tell nothing", "tell the card's again"]
)
def test_a_card_of_two_dies_is_counted_once(programs, tmp_path: Path, second_dies) -> None:
    one, other = second_dies
    write_smi(programs, [100.0, one, 1_000.0, other])
    (counter,) = counting.amd_counters(tmp_path, devices=4, per_card=2)
    assert counter.read_joules() == pytest.approx(1_100.0)
    meter = Meter(counters=[counter], units=4, now=0.0)
    write_smi(programs, [150.0, one and 150.0, 1_030.0, other and 1_030.0])
    reading = meter.measure_energy(10.0)
    assert reading.is_whole
    # Of a die: 80 joules by 4 dies and 10 seconds.
    assert (reading.joules, reading.mean_watts) == pytest.approx((80.0, 2.0))


def test_cards_of_one_device_are_counted_each(programs: Path, tmp_path: Path) -> None:
    write_smi(programs, [5.0, 7.0])
    (counter,) = counting.amd_counters(tmp_path, devices=2, per_card=1)
    assert counter.read_joules() == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("told", "devices", "said"),
    [
        ([5.0, 0.0, 7.0, 0.0], 2, "4 devices of 2 cards with counters, the profile has 2 of 1"),
        ([5.0, 0.0, 0.0, 0.0], 4, "4 devices of 1 cards with counters, the profile has 4 of 2"),
        ([5.0, 6.0, 7.0, 8.0], 4, "sees 4 devices of 4 cards"),
        ([0.0, 0.0], 2, "sees 2 devices of 0 cards"),
    ],
    ids=["others' cards", "a card that tells nothing", "dies of their own", "nothing"],
)
def test_other_cards_are_not_counted(programs, tmp_path, told, devices, said: str) -> None:
    write_smi(programs, told)
    with pytest.raises(NoCounterError, match=said):
        counting.amd_counters(tmp_path, devices=devices, per_card=2)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "rocm-smi is not installed"),
        ("exit 3", "rocm-smi: .*exit status 3"),
        ("echo ROCk module is NOT loaded", "reports no energy"),
        ('echo \'{"card0": {"GPU ID": 1}}\'', "reports no energy"),
        ("echo '{\"card0\": 1}'", "reports no energy"),
    ],
    ids=["absent", "fails", "no tree", "no energy", "another tree"],
)
def test_a_program_without_figures_is_no_counter(programs, tmp_path, program, said) -> None:
    if program is not None:
        (programs / "rocm-smi").write_text(f"#!/bin/bash\n{program}\n")
        (programs / "rocm-smi").chmod(0o755)
    with pytest.raises(NoCounterError, match=said):
        counting.amd_counters(tmp_path, devices=2, per_card=2)


def test_cray_s_counters_come_before_the_program(programs: Path, tmp_path: Path) -> None:
    write_smi(programs, [1.0, 0.0] * 4)
    write_cray(tmp_path, [10.0, 200.0, 3_000.0, 40_000.0])
    counters = counting.amd_counters(tmp_path, devices=8, per_card=2)
    assert [one.read_joules() for one in counters] == [10.0, 200.0, 3_000.0, 40_000.0]
    assert not (programs / "asked").exists()
    with pytest.raises(NoCounterError, match="4 cards count 4 ranks and perhaps other jobs"):
        counting.amd_counters(tmp_path, devices=4, per_card=2)
    (tmp_path / "cray/pm_counters/accel1_energy").write_text("\n")
    with pytest.raises(NoCounterError, match="accel1_energy is not a number"):
        counters[1].read_joules()


def test_processors_and_memory_count_and_what_is_part_of_them_does_not(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0", microjoules=1_000_000)
    write_zone(tmp_path, "intel-rapl:0:0", "core", microjoules=10_000_000)
    write_zone(tmp_path, "intel-rapl:0:1", "dram", microjoules=100_000_000)
    write_zone(tmp_path, "intel-rapl:1", "package-1-die-0", microjoules=2_000_000)
    write_zone(tmp_path, "intel-rapl:2", "psys", microjoules=20_000_000)
    write_zone(tmp_path, "intel-rapl-mmio:0", "package-0", microjoules=40_000_000)
    assert sum(one.read_joules() for one in counting.host_counters(tmp_path)) == 103.0


def test_a_processor_that_begins_again_at_its_own_range_is_counted_on(tmp_path: Path) -> None:
    zone = {"microjoules": 69_999_000, "most": 7 * 10**7}
    file = write_zone(tmp_path, "intel-rapl:0", "package-0", **zone)
    meter = Meter(counters=counting.host_counters(tmp_path), units=1, now=0.0)
    file.write_text("500\n")
    assert meter.measure_energy(0.05).joules == pytest.approx(0.0015)
    file.write_text("600\n")  # 70 joules may pass unseen in 0.07 seconds of a kilowatt
    assert meter.measure_energy(0.2).joules == pytest.approx(0.0015)


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCounterError, match=r"no RAPL below .*/class/powercap"):
        counting.host_counters(tmp_path)


@pytest.mark.parametrize("name", ["energy_uj", "max_energy_range_uj"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    file = write_zone(tmp_path, "intel-rapl:1", "package-1").with_name(name)
    file.unlink()
    file.mkdir()  # root, who may run this, can read any file, but no folder as one
    with pytest.raises(NoCounterError, match=f"intel-rapl:1/{name}: Is a directory"):
        counting.host_counters(tmp_path)


def test_each_card_is_counted_once_and_its_tiles_not_again(tmp_path: Path) -> None:
    for number in range(6):
        driver = "xe" if number == 5 else "i915"
        write_card(tmp_path, number, driver=driver, microjoules=number * 1_500_000)
    cards = counting.card_counters(tmp_path)
    assert [one.read_joules() for one in cards] == [1.5 * n for n in range(6)]
    # A card must be read before its register begins again: i915_hwmon.c.
    assert cards[0].longest_seconds == pytest.approx(4.36 * 60, rel=5e-3)


def test_a_machine_without_such_cards_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoCounterError, match="no i915 or xe card"):
        counting.card_counters(tmp_path)
    write_card(tmp_path, 0, driver="amdgpu")
    with pytest.raises(NoCounterError, match=r"no i915 or xe card below .*/class/drm"):
        counting.card_counters(tmp_path)


def test_one_card_that_does_not_tell_is_named(tmp_path: Path) -> None:
    write_card(tmp_path, 0)
    write_card(tmp_path, 1, microjoules=None)
    with pytest.raises(NoCounterError, match="hwmon10/energy1_input: No such file"):
        counting.card_counters(tmp_path)


UUID = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"


class Refused(Exception):  # noqa: N818 - stands for NVMLError, whose name is NVIDIA's
    """What NVML raises."""


class NotSupported(Refused): ...


class NotThere(Refused): ...


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
    monkeypatch.setattr(counting, "pynvml", answers)
    return answers


@pytest.mark.parametrize("mig", [(0, 1), NotSupported("Not Supported"), NotThere("Not Found")])
def test_millijoules_of_a_whole_gpu_are_read(nvml: Answers, mig: object) -> None:
    nvml.mig = mig
    counter = counting.NvidiaCounter(uuid=UUID)
    nvml.energy = 126_272_101_025
    assert counter.read_joules() == 126_272_101.025


def test_a_gpu_that_stops_telling_says_so(nvml: Answers) -> None:
    counter = counting.NvidiaCounter(uuid=UUID)
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
def test_what_counts_no_whole_gpu_is_no_counter(nvml: Answers, planted, said: str) -> None:
    nvml.__dict__.update(planted)
    with pytest.raises(NoCounterError, match=said):
        counting.NvidiaCounter(uuid=UUID)


def test_without_binding_or_gpu_there_is_no_counter(nvml: Answers, monkeypatch) -> None:
    with pytest.raises(NoCounterError, match="NVML: Not Found"):
        counting.NvidiaCounter(uuid="another")
    monkeypatch.setattr(counting, "pynvml", None)
    with pytest.raises(NoCounterError, match="nvidia-ml-py is not installed"):
        counting.NvidiaCounter(uuid=UUID)


def test_a_machine_without_such_a_gpu_says_no_counter() -> None:
    with pytest.raises(NoCounterError, match=r"NVML: |not installed") as found:
        counting.NvidiaCounter(uuid="00000000-0000-0000-0000-000000000000")
    assert "\n" not in str(found.value)


def test_the_binding_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml", reason="a site's own packages may lack the binding")
    used = {name for name in vars(Answers) if name.startswith(("nvml", "NVML"))}
    assert used
    assert used <= set(vars(pynvml))
