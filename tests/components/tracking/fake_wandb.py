"""As much of W&B's server as ``wandb sync`` talks to, on a port of this machine.

It keeps what it was given of the history, at the offset that it was given for, as the real one
does: https://github.com/wandb/wandb/issues/2858 (a run that is synced again is replaced).
"""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Tree = dict[str, Any]


class Received(ThreadingHTTPServer):
    """``upserts`` are the runs that were announced, ``history`` their rows by id."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.upserts: list[Tree] = []
        self.history: dict[str, list[Tree]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, asked: Tree) -> Tree:
        if path != "/graphql":
            run = path.split("/")[-2]
            self._keep(run, asked.get("files", {}).get("wandb-history.jsonl"))
            return {}
        variables = asked["variables"]
        if "upsertBucket" not in asked["query"]:
            return {
                "data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}}
            }
        self.upserts.append(variables)
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "r", "name": variables["name"], "project": project, "config": "{}"}
        return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}

    def _keep(self, run: str, chunk: Tree | None) -> None:
        if chunk is not None:
            rows = [json.loads(row) for row in chunk["content"]]
            self.history[run] = self.history.get(run, [])[: chunk["offset"]] + rows


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Received

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        said: Tree = {"errors": [{"message": "not for you"}]}
        telemetry = self.path.startswith("/sdk/")
        if self.server.status == 200:
            said = {} if telemetry else self.server.answer(self.path, json.loads(body or b"{}"))
        text = json.dumps(said).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def wandb_server(status: int = 200) -> Iterator[Received]:
    """Answer every request with ``status`` until the block ends."""
    with Received(status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
