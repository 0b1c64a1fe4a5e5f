"""What holds for all tests."""

import gc
import signal
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer  # type: ignore[import-untyped]  # it has no types
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

# No test is timed: the host may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell lets what it runs in the background ignore Ctrl-C, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


RECIPES = "tests/recipes/"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # the base has no types
    """Assign whole files to processes, and all of `RECIPES` to one: it composes each once."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(RECIPES):
            return RECIPES
        return str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # unknown without xdist's -n
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the objects of collection, so that the garbage collector does not visit them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that seals runs, and the private folder, out of the home of who tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.hookimpl(tryfirst=True)  # before the words of -m choose among the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make long` every case of a test that its mark ``quick`` does not name."""
    cases = defaultdict[tuple[str, tuple[str, ...]], list[str]](list)
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark is None:
            continue
        name, _, case = item.nodeid.rstrip("]").partition("[")
        cases[name, mark.args].append(case)
        if case not in mark.args:
            item.add_marker(pytest.mark.long)
    for (name, named), collected in cases.items():
        unknown = {*named} - {*collected}
        if len(collected) > 1 and unknown:
            raise pytest.UsageError(f"{name} has no case {sorted(unknown)}")
