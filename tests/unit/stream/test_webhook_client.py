"""The client of webhooks, against a receiver on this machine that answers in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.http.public_address import AllowedAddresses
from tests.harness.machine.manual_clock import ManualClock
from topicsd.stream.webhooks.webhook_client import WebhookAnswer, WebhookClient
from topicsd.stream.webhooks.webhook_request import WebhookRequest

LOCAL = "127.0.0.0/8"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def bytes_answer(text: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(text)

    return answer


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


class Receiver:
    """A server that reads one request for each connection, and answers it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self.has_request = asyncio.Event()

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *about: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head + await reader.readexactly(4))
            self.has_request.set()
            await self._answer(writer)
        finally:
            writer.close()


async def send(url: str, networks: str = LOCAL, timeout_ms: int = 2000) -> WebhookAnswer:
    client = WebhookClient(AllowedAddresses(networks), ManualClock())
    answer: asyncio.Future[WebhookAnswer] = asyncio.get_running_loop().create_future()
    client.send(WebhookRequest(url, {"webhook-id": "msg_1"}, b"body", timeout_ms), answer.set_result)
    try:
        return await answer
    finally:
        await client.close()


def ask(answer: Answer, timeout_ms: int = 2000) -> tuple[WebhookAnswer, list[bytes]]:
    async def run() -> tuple[WebhookAnswer, list[bytes]]:
        async with Receiver(answer) as receiver:
            url = f"http://127.0.0.1:{receiver.port}/in?a=%2F"
            return await send(url, timeout_ms=timeout_ms), receiver.requests

    return asyncio.run(run())


def test_a_request_has_its_fields_and_its_body() -> None:
    answer, (request,) = ask(bytes_answer(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"))
    assert answer == WebhookAnswer(202, "")
    assert request.startswith(b"POST /in?a=%2F HTTP/1.1\r\n")
    assert b"\r\nwebhook-id: msg_1\r\n" in request
    assert request.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(
    ("text", "status", "error", "retry_after_ms"),
    [
        (b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", 500, "the receiver answered 500", 0),
        (b"HTTP/1.1 429 No\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n", 429, "answered 429", 7000),
        (
            b"HTTP/1.1 302 No\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
            302,
            "redirects are not followed",
            0,
        ),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n", 0, "chunk size", 0),
        (b"not http\r\n\r\n", 0, "", 0),
        (b"", 0, "", 0),
    ],
)
def test_any_other_answer_is_a_failure(text: bytes, status: int, error: str, retry_after_ms: int) -> None:
    answer, requests = ask(bytes_answer(text))
    assert (answer.status, answer.retry_after_ms) == (status, retry_after_ms)
    assert answer.error
    assert error in answer.error
    assert len(requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nxyz",
        b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1 << 20),
    ],
)
def test_a_wrong_body_of_an_accepted_request_changes_nothing(text: bytes) -> None:
    answer, _ = ask(bytes_answer(text))
    assert answer == WebhookAnswer(200, "")


@pytest.mark.parametrize("answer", [hang, reset])
def test_a_receiver_that_hangs_or_resets_is_a_failure(answer: Answer) -> None:
    result, _ = ask(answer, timeout_ms=200)
    assert result.status == 0
    assert result.error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"])
def test_a_target_on_a_private_address_is_never_connected_to(host: str) -> None:
    async def run() -> tuple[WebhookAnswer, list[bytes]]:
        async with Receiver(bytes_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")) as receiver:
            return await send(f"http://{host}:{receiver.port}/", networks=""), receiver.requests

    answer, requests = asyncio.run(run())
    assert answer.status == 0
    assert answer.error
    assert requests == []


def test_a_refused_address_is_named_with_the_setting() -> None:
    answer = asyncio.run(send("http://127.0.0.1:9/", networks="10.0.0.0/8"))
    assert "127.0.0.1 is not a public address" in answer.error
    assert "TOPICS_WEBHOOK_PRIVATE" in answer.error


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "224.0.0.1", "255.255.255.255"),
        *("::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:7f00:1::"),
    ],
)
def test_an_address_that_is_not_public_is_not_allowed(address: str) -> None:
    assert not AllowedAddresses("").allow(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_a_public_address_is_allowed(address: str) -> None:
    assert AllowedAddresses("").allow(address)


def test_a_closed_client_ends_what_is_in_flight_and_reports_nothing() -> None:
    async def run() -> None:
        async with Receiver(hang) as receiver:
            client = WebhookClient(AllowedAddresses(LOCAL), ManualClock())
            answers: list[WebhookAnswer] = []
            request = WebhookRequest(f"http://127.0.0.1:{receiver.port}/", {}, b"body", 20_000)
            client.send(request, answers.append)
            await receiver.has_request.wait()
            await client.close()
            client.send(request, answers.append)
            await asyncio.sleep(0.05)
            assert answers == []
            assert len(receiver.requests) == 1

    asyncio.run(run())
