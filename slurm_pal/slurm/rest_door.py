# SPDX-License-Identifier: MIT
"""What slurmrestd is asked and told, in the newest version of its data that is known here. Imports little."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from slurm_pal.base.errors import AnswerLostError, NotByRestError, RefusedError, SlurmError
from slurm_pal.base.terminal import visible
from slurm_pal.slurm.rest_wire import Answer, Wire

OLDEST, NEWEST = 37, 45
"""The versions of the data that are known: v0.0.37 comes with Slurm 20.11 to 22.05, v0.0.45 with 26.05."""
OLD_FORM, NEW_FORM = 38, 40
"""The versions in which jobs can be described: v0.0.38, and v0.0.40 and later."""
NO_SUCH_JOB = 2017  # ESLURM_INVALID_JOB_ID of slurm_errno.h
HELD = 2042  # ESLURM_JOB_HELD: the job was accepted, and waits
ENDED = (2021, 2017)  # ESLURM_ALREADY_DONE, and no such job (any more)
OTHER_STATE = 2172  # a job is not in the state that was asked for
_UNSURE = (1802, 1803, 1804)  # slurmctld was reached, and its answer was not heard
_SOCKETS = range(5000, 5100)  # the same, on a socket
_VERSION = re.compile(r"/slurm/v0\.0\.([0-9]{1,3})/nodes/?")
_TABLES = ("nodes", "partitions", "reservations", "jobs")

Row = dict[str, Any]


class Submitted(NamedTuple):
    """An accepted job, and what the site's job_submit plug-in has to say to its user ("" for nothing)."""

    job_id: int
    said: str


class Door:
    """One slurmrestd. The version of the data is looked up when it is first needed."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._version = 0
        self._job_keys: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """45 for v0.0.45. Raises SlurmError."""
        if not self._version:
            self._version = self._newest()
        return self._version

    @property
    def writes_new_form(self) -> bool:
        """Whether jobs are described as from v0.0.40 on. Raises NotByRestError for a version that only reads here."""
        if self.version != OLD_FORM and self.version < NEW_FORM:
            raise NotByRestError(
                f"slurmrestd offers v0.0.{self.version}, through which nothing is changed here: "
                f"v0.0.{OLD_FORM} or v0.0.{NEW_FORM} to v0.0.{NEWEST} can (start it with another -s or -d)"
            )
        return self.version >= NEW_FORM

    def job_keys(self) -> frozenset[str]:
        """The keys of a job in this version, by the OpenAPI document: others are ignored from v0.0.40 on.

        v0.0.38 refuses them itself, and takes some that its document leaves out. Raises NotByRestError.
        """
        if not self.writes_new_form:
            raise NotByRestError(f"v0.0.{self.version} does not show all keys that it takes")
        if not self._job_keys:
            raise NotByRestError(
                f"slurmrestd's OpenAPI document has no keys of jobs in v0.0.{self.version}: see its log"
            )
        return self._job_keys

    def ask(self, what: str, missing: int = 0) -> Row:
        """The answer about `nodes`, `jobs` and so on. Raises SlurmError with slurmrestd's own words.

        An error numbered `missing` is no error: there is no such thing.
        """
        answer = self._wire.get(self._path(what))
        errors = _rows(answer.body.get("errors"))
        if missing and missing in _numbers(errors):
            return {}
        if errors or answer.status != 200:
            raise SlurmError(f"slurmrestd: GET {what} failed: {_complaint(answer, errors)}{self._hint}")
        if what in _TABLES and what not in answer.body:
            raise SlurmError(f"slurmrestd: GET {what} shows no {what}: see its log")
        return answer.body

    def order(self, method: str, what: str, body: object = None, fine: tuple[int, ...] = ()) -> Row:
        """Have something changed; the answer. It is sent once. An error with a number of `fine` is none.

        Raises RefusedError with Slurm's own words, AnswerLostError where it may have been done all the same, and
        SlurmError where slurmrestd was not reached.
        """
        answer = self._wire.change(method, self._path(what), body)
        errors = [row for row in _rows(answer.body.get("errors")) if not _numbers([row]) & {0, *fine}]
        numbers = _numbers(errors)
        if numbers & {*_UNSURE, *_SOCKETS}:
            raise AnswerLostError(
                f"slurmrestd lost slurmctld ({_complaint(answer, errors)}): the request may have been carried out, "
                "look before you repeat it"
            )
        if errors or (answer.status != 200 and not answer.body.get("errors")):
            raise RefusedError(f"{_complaint(answer, errors)}{self._hint if not numbers else ''}")
        return answer.body

    def submit(self, body: Row) -> Submitted:
        """Submit a job. Raises as `order`."""
        answer = self.order("POST", "job/submit", body, fine=(HELD,))
        job_id = answer.get("job_id")
        if not isinstance(job_id, int) or job_id <= 0:
            raise AnswerLostError(
                "slurmrestd names no job in its answer: look whether there is one before you repeat it"
            )
        said = answer.get("job_submit_user_msg")
        return Submitted(job_id, said if isinstance(said, str) else "")

    def _path(self, what: str) -> str:
        return f"/slurm/v0.0.{self.version}/{what}"

    @property
    def _hint(self) -> str:
        return " (so it is also with a token that has expired: scontrol token)" if self._wire.has_token else ""

    def _newest(self) -> int:
        """The newest version of the data that is known here, by slurmrestd's OpenAPI document."""
        answer = self._wire.get("/openapi/v3")
        paths = answer.body.get("paths")
        if answer.status != 200 or not isinstance(paths, dict):
            raise SlurmError(f"slurmrestd has no OpenAPI document (HTTP {answer.status}): correct slurm.rest")
        offered = sorted({int(match[1]) for path in paths if (match := _VERSION.fullmatch(path))})
        known = [version for version in offered if OLDEST <= version <= NEWEST]
        if not known:
            seen = ", ".join(f"v0.0.{version}" for version in offered) or "none"
            cure = "start slurmrestd with another -s or -d"
            raise SlurmError(f"slurmrestd offers {seen}, and v0.0.{OLDEST} to v0.0.{NEWEST} are known here: {cure}")
        self._job_keys = _keys_of_jobs(answer.body, known[-1])
        return known[-1]


def _keys_of_jobs(document: Row, version: int) -> frozenset[str]:
    """The keys by which a job is described in an OpenAPI document; none where it has them in another form."""
    schemas = _within(document, "components", "schemas")
    job = _within(schemas, f"v0.0.{version}_job_submit_req", "properties", "job")
    reference = job.get("$ref")
    if isinstance(reference, str):
        job = _within(schemas, reference.rpartition("/")[2])
    return frozenset(_within(job, "properties"))


def _within(found: Row, *path: str) -> Row:
    for key in path:
        inner = found.get(key)
        found = inner if isinstance(inner, dict) else {}
    return found


def _rows(value: object) -> list[Row]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _numbers(errors: list[Row]) -> set[int]:
    """The numbers of these errors, which older versions call codes."""
    found = {row.get(key) for row in errors for key in ("error_number", "error_code")}
    return {number for number in found if isinstance(number, int)}


def _complaint(answer: Answer, errors: list[Row]) -> str:
    for row in errors:
        said = [text for key in ("description", "error") if isinstance(text := row.get(key), str) and text]
        if said:
            return visible(": ".join(dict.fromkeys(said)))
    return visible(f"HTTP {answer.status}")
