"""Compare clocks by asking, never by a file's time: a file system has a clock of its own.

Cristian's algorithm: another's answer was true somewhere between our question and its arrival
(F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989).
"""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from components.preflight.verdict import Clock

_QUESTIONS = 5
_PATIENCE_SECONDS = 10.0


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Say what time it is as often as one byte comes."""
        while self.rfile.read(1):
            self.wfile.write(f"{time.time()!r}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1_024  # all nodes may ask at once


@contextmanager
def telling_time() -> Iterator[int]:
    """Answer whoever asks this process for the time; gives the port."""
    with _Server(("", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def ask_time(host: str, port: int) -> Clock:
    """Compare with the clock at ``host``; of several answers the quickest is the surest.

    Raises:
        OSError: nobody answers.
    """
    with socket.create_connection((host, port), timeout=_PATIENCE_SECONDS) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with link.makefile("rb") as answers:
            asked = [_ask_once(link, answers.readline) for _ in range(_QUESTIONS)]
    return min(asked, key=lambda clock: clock.uncertain_seconds)


def _ask_once(link: socket.socket, answer: Callable[[], bytes]) -> Clock:
    before = time.time()
    link.sendall(b"?")
    theirs = float(answer())
    after = time.time()
    return Clock(
        ahead_seconds=theirs - (before + after) / 2, uncertain_seconds=(after - before) / 2
    )
