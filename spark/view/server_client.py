"""The HTTP client of a driver or a task: one kept connection, with retries.

Requests to a busy, restarting or unreachable server are retried for up to `retry_s`, after the server's
Retry-After if it sends one. Every request must therefore be idempotent; callers that write ensure this.
"""

from __future__ import annotations

import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection, RemoteDisconnected
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from shared.runtime.clock import Clock, SystemClock
from spark.errors import SourceError

RETRY_S = 60.0
RESPONSE_TIMEOUT_S = 60.0
PAUSE_S_MAX = 5.0
# Busy, in doubt, not ready, full: conditions that may clear in a moment.
RETRY_STATUSES = frozenset((429, 503, 504, 507))


class _ErrorFields(msgspec.Struct):
    code: str = ""
    message: str = ""
    detail: dict[str, Any] = {}


class _ErrorResponse(msgspec.Struct):
    error: _ErrorFields


class ServerRefusal(SourceError):
    """A refusal by the server, with its status, code and detail."""

    def __init__(self, sentence: str, status: int, code: str, detail: dict[str, Any]) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.detail = detail


class ServerClient:
    def __init__(self, url: str, api_key: str, retry_s: float = RETRY_S, clock: Clock | None = None) -> None:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        assert parts.hostname is not None
        self._connection = kind(parts.hostname, parts.port, timeout=RESPONSE_TIMEOUT_S)
        self._base = parts.path.rstrip("/") + "/v0/"
        self._fields = {"content-type": "application/json"}
        if api_key:
            self._fields["authorization"] = f"Bearer {api_key}"
        self._url = url
        self._retry_s = retry_s
        self._clock = SystemClock() if clock is None else clock

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, target: str, body: Any = None) -> bytes:
        """Return the body of the response; raise `ServerRefusal` for a refusal that a retry cannot fix."""
        payload = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        deadline, pause_s = self._clock.monotonic() + self._retry_s, 0.05
        while True:
            try:
                status, retry_after_s, answer = self._once(method, target, payload)
            except (OSError, HTTPException) as error:
                # The server closes idle connections; the next attempt opens a new one.
                self.close()
                problem: SourceError = SourceError(f"url: no response from {self._url}: {_reason(error)}")
                is_idle_end = isinstance(error, RemoteDisconnected | ConnectionResetError)
                wait_s = 0.05 if is_idle_end else pause_s
            else:
                if status < 300:
                    return answer
                problem = _refusal(status, answer, f"{method} {target}")
                if status not in RETRY_STATUSES:
                    raise problem
                wait_s = max(pause_s, retry_after_s)
            if self._clock.monotonic() + wait_s > deadline:
                raise problem
            threading.Event().wait(min(wait_s, PAUSE_S_MAX))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _once(self, method: str, target: str, body: bytes | None) -> tuple[int, float, bytes]:
        self._connection.request(method, self._base + target, body, self._fields)
        answer = self._connection.getresponse()
        after = answer.getheader("retry-after", "")
        return answer.status, float(after) if after.isdecimal() else 0.0, answer.read()


def in_path(name: str) -> str:
    return quote(name, safe="")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _refusal(status: int, body: bytes, request: str) -> ServerRefusal:
    try:
        error = msgspec.json.decode(body, type=_ErrorResponse).error
    except msgspec.DecodeError:
        error = _ErrorFields(message=body[:200].decode(errors="replace"))
    return ServerRefusal(
        f"{request}: the server responded {status} {error.code}: {error.message}",
        status,
        error.code,
        error.detail,
    )
