"""The HTTP client of all webhooks of a worker.

C1  An address is checked when a connection to it is made (`AllowedAddresses`), so a name that resolves to
    another address later reaches no other one. Redirects are not followed, no proxy is used, and no cookie is
    kept.
C2  The status is the answer. What follows it is not waited for, and not kept: a body may be wrong or endless.
C3  After `close` nothing is reported: a request in flight ends, or is sent again by the next worker.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from shared.http.public_address import AllowedAddresses
from shared.runtime.clock import Clock
from shared.runtime.program_version import program_version
from topicsd.stream.webhooks.webhook_request import WebhookRequest

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

REQUESTS_MAX: Final = 256
"""How many requests of one worker are in flight at most."""
CLOSE_SECONDS: Final = 2.0
ERROR_CHARACTERS_MAX: Final = 300


class WebhookAnswer(NamedTuple):
    """The end of one request: a status, or an error."""

    status: int
    """The status of the response; 0 without a response."""
    error: str
    """Why the request failed; empty when it did not."""
    retry_after_ms: int = 0
    """How long the receiver wants to be left alone."""


class Cancellable(Protocol):
    def cancel(self) -> object: ...


OnAnswer = Callable[[WebhookAnswer], object]
SendWebhook = Callable[[WebhookRequest, OnAnswer], Cancellable]


class AddressRefused(OSError):
    """An address that no webhook may reach."""


class WebhookClient:
    def __init__(self, addresses: AllowedAddresses, clock: Clock) -> None:
        self._addresses = addresses
        self._clock = clock
        self._aiohttp: Any = None
        self._session: ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(REQUESTS_MAX)
        self._is_closed = False

    def send(self, request: WebhookRequest, on_answer: OnAnswer) -> Cancellable:
        """Send a request and report its end; it may be cancelled, and is then not reported."""
        task = asyncio.get_running_loop().create_task(self._send(request, on_answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_closed:
            task.cancel()
        return task

    async def close(self) -> None:
        """End the requests in flight, after a moment in which they may end by themselves (C3)."""
        self._is_closed = True
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _send(self, request: WebhookRequest, on_answer: OnAnswer) -> None:
        async with self._turns:
            answer = await self._answer_to(request)
        on_answer(answer)

    async def _answer_to(self, request: WebhookRequest) -> WebhookAnswer:
        if self._aiohttp is None:
            # Slow to import, and needed by few servers.
            self._aiohttp = await asyncio.to_thread(import_module, "aiohttp")
        aiohttp, yarl = self._aiohttp, import_module("yarl")
        if self._session is None:
            self._session = self._open_session(aiohttp)
        seconds = request.timeout_ms / 1000
        try:
            async with self._session.post(
                yarl.URL(request.url, encoded=True),
                data=request.body,
                headers=request.fields,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                return self._answer_of(response)
        except TimeoutError:
            return WebhookAnswer(0, f"no response within {seconds:g} s")
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            return WebhookAnswer(0, (str(error) or type(error).__name__)[:ERROR_CHARACTERS_MAX])

    def _open_session(self, aiohttp: Any) -> ClientSession:
        # `REQUESTS_MAX` limits connections; the limit of a connector would count against the timeout.
        connector = aiohttp.TCPConnector(limit=0, socket_factory=partial(_open_socket, self._addresses))
        session: ClientSession = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": f"topicsd/{program_version()}"},
            auto_decompress=False,
        )
        return session

    def _answer_of(self, response: ClientResponse) -> WebhookAnswer:
        status = response.status
        if 200 <= status < 300:
            return WebhookAnswer(status, "")
        error = f"the receiver answered {status}"
        if 300 <= status < 400:
            error += "; redirects are not followed"
        return WebhookAnswer(status, error, retry_after_ms(response.headers, self._clock.now_ms()))


def _open_socket(addresses: AllowedAddresses, info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = info
    if not addresses.allow(address[0]):
        message = f"{address[0]} is not a public address; TOPICS_WEBHOOK_PRIVATE can allow its network"
        raise AddressRefused(errno.EACCES, message)
    return socket.socket(family, kind, protocol)


def retry_after_ms(fields: Any, now_ms: int) -> int:
    """Return the milliseconds of a Retry-After field, which has seconds or a date; 0 without a valid one.

    >>> retry_after_ms({"retry-after": "7"}, 0)
    7000
    >>> retry_after_ms({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 20_000)
    40000
    >>> retry_after_ms({"retry-after": "soon"}, 0), retry_after_ms({}, 0)
    (0, 0)
    """
    text = fields.get("retry-after", "").strip()
    if text.isdecimal() and text.isascii():
        return int(text[:9]) * 1000
    try:
        return max(0, round(parsedate_to_datetime(text).timestamp() * 1000) - now_ms)
    except (ValueError, TypeError, OverflowError):
        return 0
