"""Commands that are killed or stopped at random moments, or that run twice at once."""

import json
import random
import shutil
import signal
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.data_prep.corpora import paragraphs
from tests.life.conftest import act, command, environment, tiny

pytestmark = pytest.mark.long

SEED = 51
KILLS = {signal.SIGKILL: 3, signal.SIGTERM: 2, signal.SIGINT: 1}
MOST_DELAY_SECONDS = 0.02
STOPPED = ("stopped; incomplete files were removed\n", "stopped before any work started\n")
OWN_TEXT = tiny(
    "data.sources={de: {files: [de.txt]}, fr: {files: [fr.jsonl]}}",
    *("data.shares={de: 0.5, fr: 0.5}", "data.packing=best_fit", "data.write_megatron=true"),
    *("budget.total_tokens=1_024", "checkpoint.every_tokens=1_024"),
)
CLEANED = ("preparation=plain", "data.preparation.workers=1")
COMMANDS = {  # and what they write
    "prepare": ("data", (*OWN_TEXT, "action=prepare", "data.folder=data")),
    "clean": ("cleaned", (*OWN_TEXT, *CLEANED, "action=prepare", "data.folder=cleaned")),
    "export": ("hf", ("action=export", "run=run", "file=hf")),
}
CACHE = "hashes.jsonl"
# Python imports this before `run.py`. It counts the calls that concern files of the working
# folder, and writes their number down at the end, or sends a signal after one of them.
HOOK = """
import atexit, os, signal, sys, threading

EVENTS = {"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.scandir"}
counter, calls = os.environ.pop("COUNTER", ""), 0
moment, number, delay = os.environ.pop("KILL", "0 0 0").split()
here = os.getcwd()

def kill():
    if int(number) == signal.SIGKILL:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), int(number))

def count(event, values):
    global calls
    if event in EVENTS and isinstance(values[0], str | os.PathLike):
        if os.path.abspath(values[0]).startswith(here):
            calls += 1
            if calls == int(moment):
                threading.Timer(float(delay), kill).start()

def write():
    with open(counter, "w") as file:
        file.write(str(calls))

if counter:
    atexit.register(write)
if counter or int(moment):
    sys.addaudithook(count)
"""

Files = dict[str, str]


class Undisturbed:
    """A command that ran once: its result, which is removed again, and its number of calls."""

    def __init__(self, home: Path, hook: Path, name: str) -> None:
        self.home, self.hook, self.name = home, hook, name
        target, self.words = COMMANDS[name]
        self.target = home / target
        before = self.files()
        counter = hook / "calls"
        status, _, err = end(self.start(COUNTER=str(counter)))
        assert status == 0, err
        self.calls = int(counter.read_text())
        self.result = self.files()
        self.remove()
        assert self.files() == before

    def start(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*self.words),
            cwd=self.home,
            env=environment() | {"PYTHONPATH": str(self.hook), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def files(self) -> Files:
        """Hash the files of the working folder; what a lock file says does not count."""
        return {
            str(file.relative_to(self.home)): sha256(
                b"" if file.suffix == ".lock" else file.read_bytes()
            ).hexdigest()
            for file in self.home.rglob("*")
            if file.is_file() and file.name != CACHE
        } | {f"{folder.relative_to(self.home)}/": "" for folder in self.home.rglob("*/")}

    def remove(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)

    def check_visible(self) -> bool:
        """Assert that files with final names are complete; return whether all are there."""
        found = self.files()
        visible = {name: found[name] for name in found if "/." not in f"/{name}"}
        assert visible.items() <= self.result.items()
        for manifest in self.target.glob("[!.]*-*/manifest.json"):
            tree = json.loads(manifest.read_bytes())
            for source in tree["sources"].values():
                for record in (*source["train"], *source["held_out"]):
                    assert (manifest.parent / record["name"]).stat().st_size == record["bytes"]
        assert self.name != "export" or not self.target.exists() or found == self.result
        return found == self.result


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with text in two formats."""
    place = tmp_path_factory.mktemp("home")
    (place / "de.txt").write_text("\n\n".join(paragraphs("de") * 3), "utf-8")
    lines = (json.dumps({"text": text}) + "\n" for text in paragraphs("fr") * 3)
    (place / "fr.jsonl").write_text("".join(lines), "utf-8")
    return place


@pytest.fixture(scope="module", params=list(COMMANDS))
def undisturbed(
    home: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Undisturbed:
    hook = tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(HOOK)
    if request.param == "export":
        assert act(home, *OWN_TEXT, "data.folder=trained", "run=run") == 0
    return Undisturbed(home, hook, request.param)


@pytest.mark.parametrize("number", list(KILLS))
def test_a_killed_command_is_completed_when_repeated(undisturbed, number):
    draw = random.Random(SEED + number)
    for _ in range(KILLS[number]):
        undisturbed.remove()
        moment, delay = draw.randint(1, undisturbed.calls), draw.uniform(0, MOST_DELAY_SECONDS)
        status, _, err = end(undisturbed.start(KILL=f"{moment} {int(number)} {delay}"))
        case = f"{number.name} {delay:.3f} s after call {moment} of {undisturbed.calls}: {err}"
        is_whole = undisturbed.check_visible()
        if number == signal.SIGKILL:
            assert status in {0, -number}, case
        elif status != 0:
            assert status in {128 + number, -number}, case
            assert err.endswith(STOPPED), case
            hidden = [name for name in undisturbed.files() if "partial" in name]
            assert hidden == [], case
        status, _, err = end(undisturbed.start())
        if undisturbed.name == "export" and is_whole:
            assert (status, "hf exists" in err) == (2, True), case
        else:
            assert status == 0, (case, err)
        assert undisturbed.files() == undisturbed.result, case


def test_two_concurrent_commands_have_the_result_of_one(undisturbed: Undisturbed) -> None:
    undisturbed.remove()
    both = [end(process) for process in [undisturbed.start() for _ in range(2)]]
    for status, _, err in both:
        late = "hf exists" in err or "hf: Directory not empty\n" in err
        assert status == 0 or (undisturbed.name == "export" and status == 2 and late), err
    assert 0 in {status for status, _, _ in both}
    assert undisturbed.files() == undisturbed.result
