# SPDX-License-Identifier: MIT
"""Requests to slurmrestd over a Unix socket or HTTP(S): JSON objects, bounded in time and size (slurmrestd(8))."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import re
import socket
import ssl
import stat
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from slurm_pal.base.errors import AnswerLostError, ConfigError, DataError, SlurmError
from slurm_pal.base.files import open_regular
from slurm_pal.base.terminal import visible

MOST_BYTES = 256 * 2**20
"""An answer has about 3.2 kB for each job, so this is room for 80,000 of them."""
TOKEN_BYTES = 16384
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_FORMS = "unix:/PATH, http://HOST:PORT or https://HOST:PORT"
_SHOWN = 80  # characters of an answer that is no JSON


class Address(NamedTuple):
    """Where slurmrestd listens, as a site writes it."""

    text: str
    scheme: str  # "unix", "http" or "https"
    host: str  # of a socket its path
    port: int | None = None
    prefix: str = ""  # before all paths, where a proxy stands before slurmrestd


class Answer(NamedTuple):
    """An HTTP status and the JSON object that came with it."""

    status: int
    body: dict[str, Any]


def address(text: str) -> Address:
    """Read the setting slurm.rest. Raises ConfigError."""
    wrong = ConfigError(f"slurm.rest = {text!r} must be {_FORMS}")
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or not path.isprintable():
            raise wrong
        return Address(text, "unix", path)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    plain = not (parts.query or parts.fragment or "@" in parts.netloc) and re.fullmatch(r"[!-~]+", text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise wrong
    return Address(text, parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def token(path: str, environ: Mapping[str, str] = os.environ) -> str:
    """The JSON web token: $SLURM_JWT as Slurm's commands take it, else the file at `path`; "" where neither is set.

    Raises ConfigError for a file that somebody else may read, and for what cannot be a token.
    """
    found, origin = environ.get("SLURM_JWT", ""), "$SLURM_JWT"
    if not found and path:
        found, origin = _token_file(path), f"slurm.rest_token: {path}"
    # scontrol token prints SLURM_JWT=...
    found = found.strip().removeprefix("SLURM_JWT=")
    if not found and origin == "$SLURM_JWT":
        return ""
    if len(found) > TOKEN_BYTES or not _TOKEN.fullmatch(found):
        raise ConfigError(f"{origin} holds no token: write what scontrol token prints, on one line")
    return found


def _token_file(path: str) -> str:
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            info = os.fstat(stream.fileno())
            mode = stat.S_IMODE(info.st_mode)
            if mode & 0o077:
                raise ConfigError(f"slurm.rest_token: others can read {path} (mode {mode:04o}): chmod 600 {path}")
            if info.st_uid != os.geteuid():
                raise ConfigError(f"slurm.rest_token: {path} belongs to uid {info.st_uid}, not to you: use your own")
            return stream.read(TOKEN_BYTES + 32).decode("ascii", errors="replace")
    except DataError as error:
        raise ConfigError(f"slurm.rest_token: {error}") from None
    except OSError as error:
        raise ConfigError(f"slurm.rest_token: {path} cannot be read: {error.strerror}") from None


class Wire:
    """Asks one slurmrestd, a new connection each time. `timeout_s` is for each question as a whole."""

    def __init__(self, where: Address, jwt: str = "", timeout_s: float = 30.0, most_bytes: int = MOST_BYTES) -> None:
        self.where, self._timeout_s, self._most = where, timeout_s, most_bytes
        self._headers = {"Accept": "application/json", "Connection": "close"}
        self.has_token = bool(jwt)
        if jwt:
            with contextlib.suppress(KeyError):  # the token names its user as well
                self._headers["X-SLURM-USER-NAME"] = pwd.getpwuid(os.geteuid()).pw_name
            self._headers["X-SLURM-USER-TOKEN"] = jwt

    def get(self, path: str) -> Answer:
        """The answer to `GET path`. Raises SlurmError where none comes, in time and of a size that can be, as JSON."""
        return self._asked("GET", path, None)

    def change(self, method: str, path: str, body: object = None) -> Answer:
        """The answer to a request that changes something, sent at most once.

        Raises SlurmError where slurmrestd was not reached or refuses the user, so nothing was done, and
        AnswerLostError where it may have been done.
        """
        sent = b"" if body is None else json.dumps(body).encode()
        return self._asked(method, path, sent)

    def _asked(self, method: str, path: str, sent: bytes | None) -> Answer:
        late, reached, changes = threading.Event(), False, sent is not None
        headers = self._headers | ({"Content-Type": "application/json"} if sent else {})
        with contextlib.closing(self._connection()) as connection:
            try:
                connection.connect()
                reached, plug = True, connection.sock

                def give_up() -> None:
                    late.set()
                    with contextlib.suppress(OSError):
                        plug.shutdown(socket.SHUT_RDWR)

                # The time-out of a socket is for each piece that comes: a trickle would go on for ever.
                watchdog = threading.Timer(self._timeout_s, give_up)
                watchdog.daemon = True
                watchdog.start()
                try:
                    connection.request(method, self.where.prefix + path, sent or None, headers)
                    with connection.getresponse() as response:
                        raw = response.read(self._most + 1)
                        left = response.length  # still to come, by the header
                finally:
                    watchdog.cancel()
            except (OSError, http.client.HTTPException) as error:
                trouble = self._no_answer(error, late.is_set())
                raise (self._lost(trouble) if changes and reached else trouble) from None
        if response.status in (401, 403) and not late.is_set():
            cure = "set slurm.rest_token to a file with what scontrol token prints, or renew that token"
            raise SlurmError(f"{self._name} does not accept this user (HTTP {response.status}): {cure}")
        try:
            if late.is_set():
                raise self._no_answer(TimeoutError(), True)
            if len(raw) > self._most:
                raise SlurmError(f"{self._name} answered with more than {self._most >> 20} MiB: see who asks for what")
            if left:
                raise SlurmError(f"{self._name} ended before its answer was complete: see its log")
            return Answer(response.status, self._object(raw, response))
        except SlurmError as error:
            raise (self._lost(error) if changes and not 400 <= response.status < 500 else error) from None

    def _lost(self, error: SlurmError) -> AnswerLostError:
        return AnswerLostError(
            f"{error}; the request was sent, and may have been carried out: look before you repeat it"
        )

    @property
    def _name(self) -> str:
        return f"slurmrestd at {self.where.text}"

    def _object(self, raw: bytes, response: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        if raw[:1] == b"{" and response.status == 200:
            raise SlurmError(f"{self._name} sent JSON that is cut short or broken: see its log")
        text = " ".join(raw[:400].decode(errors="replace").split())[:_SHOWN]
        kind = response.headers.get_content_type()
        raise SlurmError(f"{self._name} sent {kind} and no JSON (HTTP {response.status}): {visible(text) or 'nothing'}")

    def _no_answer(self, error: Exception, late: bool) -> SlurmError:
        if late or isinstance(error, TimeoutError):
            return SlurmError(
                f"{self._name} did not answer within {self._timeout_s:g} s: see its log, and scontrol ping"
            )
        if isinstance(error, http.client.RemoteDisconnected):
            return SlurmError(f"{self._name} ended the connection without an answer: see its log")
        if isinstance(error, http.client.HTTPException):
            return SlurmError(f"{self._name} speaks no HTTP ({type(error).__name__}): correct slurm.rest")
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return SlurmError(f"{self._name} cannot be reached ({why}): start it, or correct slurm.rest")

    def _connection(self) -> http.client.HTTPConnection:
        if self.where.scheme == "unix":
            return _UnixConnection(self.where.host, self._timeout_s)
        if self.where.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self.where.host, self.where.port, timeout=self._timeout_s, context=context
            )
        return http.client.HTTPConnection(self.where.host, self.where.port, timeout=self._timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
