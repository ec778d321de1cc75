# SPDX-License-Identifier: MIT
"""A server on a Unix socket or a port that gives each path the bytes that a test wants, well-formed or not."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

OPENAPI = "/openapi/v3"


def told(body: object, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole HTTP answer with a JSON body, or a text as it is."""
    text = (body if isinstance(body, str) else json.dumps(body)).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


JOB_KEYS = (
    "account", "admin_comment", "array", "argv", "begin_time", "comment", "constraints", "current_working_directory",
    "environment", "excluded_nodes", "flags", "mail_type", "memory_per_node", "minimum_cpus", "minimum_nodes", "name",
    "nice", "nodes", "oom_kill_step", "partition", "priority", "required_nodes", "requeue", "segment_size",
    "site_factor", "tasks", "time_limit", "tres_bind", "tres_per_job", "tres_per_node", "tres_per_task",
)  # fmt: skip
"""Some of the keys by which a job is described."""


def offers(*versions: int, slash: str = "", without: str = "") -> bytes:
    """An OpenAPI document with these versions of the data, whose jobs lack one key."""
    paths = {f"/slurm/v0.0.{version}/nodes{slash}": {"get": {}} for version in versions}
    keys = {key: {} for key in JOB_KEYS if key != without}
    schemas: dict[str, object] = {"job_desc_msg": {"properties": keys}}
    for version in versions:
        job = {"$ref": "#/components/schemas/job_desc_msg"} if version % 2 else {"properties": keys}
        schemas[f"v0.0.{version}_job_submit_req"] = {"properties": {"script": {}, "job": job}}
    return told({"paths": paths, "components": {"schemas": schemas}})


class RestServer:
    """Answers each connection once, with b"" by closing it; `requests` has what came, head and all."""

    def __init__(self, answers: Mapping[str, bytes | Iterable[bytes]], path: str = "") -> None:
        self.requests: list[str] = []
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(path or ("127.0.0.1", 0))
        self._listener.listen()
        self.where = f"unix:{path}" if path else f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                plug, _ = self._listener.accept()
            except OSError:
                return
            with plug:
                plug.settimeout(10)
                try:
                    self._answer(plug)
                except OSError:  # the client has gone
                    continue

    def _answer(self, plug: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = plug.recv(65536)
            if not piece:
                return
            head += piece
        match = re.search(rb"(?i)content-length: ([0-9]+)", head)
        end = head.index(b"\r\n\r\n") + 4 + (int(match[1]) if match else 0)
        while len(head) < end and (piece := plug.recv(65536)):
            head += piece
        self.requests.append(head.decode())
        found = self._answers.get(head.split()[1].decode(), told("Unable find requested URL.", "404 NOT FOUND"))
        for piece in [found] if isinstance(found, bytes) else found:
            plug.sendall(piece)

    def __enter__(self) -> RestServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
