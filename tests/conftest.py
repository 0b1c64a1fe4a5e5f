"""What holds for all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test is timed: the host may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell lets what it runs in the background ignore Ctrl-C, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key that seals runs out of the home of whoever tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
