"""Links: each call is answered once, however its bytes are split and whether or not its peer survives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import uvloop

from shared.ipc.link import (
    HEADER,
    LARGE_PAYLOAD_BYTES,
    NEVER_SENT,
    PAYLOAD_BYTES_MAX,
    Link,
    LinkPool,
    LinkReply,
    Serve,
    address_of,
    serve_links,
)
from shared.ipc.link_kind import LinkKind
from tests.harness.stage.recording_transport import RecordingTransport

T = TypeVar("T")
Answers = list[bytes | None]


def run_scene(scene: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await scene()

    return uvloop.run(bounded())


def _link(serve: Serve = lambda kind, payload, reply: None) -> tuple[Link, RecordingTransport]:
    link, wire = Link(serve, is_caller=True), RecordingTransport()
    link.connection_made(wire)
    return link, wire


def _frame(kind: int, number: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, number) + payload


@pytest.mark.parametrize("large_bytes", [LARGE_PAYLOAD_BYTES, 100, 1])
def test_frames_are_decoded_the_same_however_they_are_split(
    monkeypatch: pytest.MonkeyPatch, large_bytes: int
) -> None:
    """This includes large payloads, which are collected separately, before and after other frames."""
    monkeypatch.setattr("shared.ipc.link.LARGE_PAYLOAD_BYTES", large_bytes)
    payloads = [b"", b"x", b"some bytes", b"y" * 300]
    sent = b"".join(_frame(LinkKind.REQUEST, n, payload) for n, payload in enumerate(payloads))

    async def scene() -> None:
        for cut in range(len(sent) + 1):
            for step in (1, 7, len(sent)):
                received: list[bytes] = []
                link, _ = _link(lambda kind, payload, reply, received=received: received.append(payload))  # type: ignore[misc]
                segments = [sent[:cut], *(sent[at : at + step] for at in range(cut, len(sent), step))]
                for segment in segments if cut % 13 == 0 or step > 1 else ():
                    if segment:
                        link.data_received(segment)
                assert received in (payloads, []), (cut, step)
                assert received or (cut % 13 and step == 1)

    run_scene(scene)


def test_requests_of_one_turn_leave_in_one_write_and_answers_reach_their_callers() -> None:
    async def scene() -> None:
        link, wire = _link()
        pairs: list[tuple[str, bytes | None]] = []
        for name in "abc":
            link.call(LinkKind.REQUEST, name.encode(), lambda answer, name=name: pairs.append((name, answer)))  # type: ignore[misc]
        assert wire.writes == []
        await asyncio.sleep(0)
        assert len(wire.writes) == 1
        for number in (3, 1, 2):
            link.data_received(_frame(LinkKind.ANSWER, number, b"%d" % number))
        assert pairs == [("c", b"3"), ("a", b"1"), ("b", b"2")]

    run_scene(scene)


def test_an_answer_without_a_pending_call_is_dropped() -> None:
    async def scene() -> None:
        link, wire = _link()
        answers: Answers = []
        link.call(LinkKind.REQUEST, b"", answers.append)
        for number in (1, 1, 99):
            link.data_received(_frame(LinkKind.ANSWER, number, b"answer"))
        assert answers == [b"answer"]
        assert not wire.is_closed

    run_scene(scene)


def test_an_error_in_one_callback_does_not_affect_the_link_or_other_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Answers = []

    def fail(answer: bytes | None) -> None:
        raise RuntimeError("the handler is closed")

    async def scene() -> None:
        link, _ = _link()
        link.call(LinkKind.REQUEST, b"first", fail)
        link.call(LinkKind.REQUEST, b"second", answers.append)
        link.data_received(_frame(LinkKind.ANSWER, 1, b"one") + _frame(LinkKind.ANSWER, 2, b"two"))

    run_scene(scene)
    assert answers == [b"two"]
    assert "the handler is closed" in caplog.text


def test_a_call_to_a_peer_that_dies_fails_once() -> None:
    async def scene() -> None:
        lost: list[Link] = []
        link = Link(lambda kind, payload, reply: None, lost.append)
        link.connection_made(RecordingTransport())
        answers: Answers = []
        link.call(LinkKind.REQUEST, b"1", answers.append)
        link.call(LinkKind.REQUEST, b"2", answers.append)
        link.data_received(_frame(LinkKind.ANSWER, 1, b"in time"))
        link.connection_lost(None)
        assert answers == [b"in time", None]
        link.call(LinkKind.REQUEST, b"3", answers.append)
        assert answers == [b"in time", None, NEVER_SENT]
        await asyncio.sleep(0)
        assert (lost, link.is_open) == ([link], False)

    run_scene(scene)


def test_an_answer_for_a_peer_that_is_gone_is_dropped() -> None:
    async def scene() -> None:
        replies: list[Callable[[bytes], None]] = []
        link, wire = _link(lambda kind, payload, reply: replies.append(reply))
        link.data_received(_frame(LinkKind.REQUEST, 5, b"x"))
        link.connection_lost(None)
        replies[0](b"too late")
        await asyncio.sleep(0)
        assert wire.writes == []

    run_scene(scene)


def test_an_impossible_length_closes_the_link() -> None:
    async def scene() -> None:
        payloads: list[bytes] = []
        link, wire = _link(lambda kind, payload, reply: payloads.append(payload))
        link.data_received(_frame(LinkKind.REQUEST, 1, b"good"))
        link.data_received(HEADER.pack(PAYLOAD_BYTES_MAX + 1, LinkKind.REQUEST, 2) + b"x" * 100)
        assert wire.is_closed
        assert payloads == [b"good"]

    run_scene(scene)


def test_frames_before_a_close_are_sent() -> None:
    async def scene() -> None:
        link, wire = _link(lambda kind, payload, reply: reply(b"answer"))
        link.data_received(_frame(LinkKind.REQUEST, 1, b"x"))
        link.close()
        assert wire.written == _frame(LinkKind.ANSWER, 1, b"answer")
        assert wire.is_closed

    run_scene(scene)


# -- cancelled waits ---------------------------------------------------------------------------------------


def test_a_caller_may_cancel_the_wait_of_the_peer_which_answers_once() -> None:
    async def scene() -> None:
        waiting: list[LinkReply] = []

        def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
            waiting.append(reply)
            reply.cancel_wait = lambda: reply(b"so far")

        link, wire = _link(serve)
        link.data_received(_frame(LinkKind.REQUEST, 7, b"x"))
        assert len(waiting) == 1
        for _ in range(2):
            link.data_received(_frame(LinkKind.CANCEL_WAIT, 7, b""))
        waiting[0](b"too late")
        link.data_received(_frame(LinkKind.CANCEL_WAIT, 8, b""))
        await asyncio.sleep(0)
        assert wire.take() == _frame(LinkKind.ANSWER, 7, b"so far")

    run_scene(scene)


def test_a_wait_is_cancelled_once_and_not_after_the_answer() -> None:
    async def scene() -> None:
        link, wire = _link()
        answers: Answers = []
        first, second = (link.call(LinkKind.REQUEST, b"", answers.append) for _ in range(2))
        await asyncio.sleep(0)
        wire.take()
        first.cancel_wait()
        first.cancel_wait()
        link.data_received(_frame(LinkKind.ANSWER, 2, b"answer"))
        second.cancel_wait()
        await asyncio.sleep(0)
        assert wire.take() == _frame(LinkKind.CANCEL_WAIT, 1, b"")
        assert answers == [b"answer"]

    run_scene(scene)


def test_a_lost_link_cancels_the_waits_of_its_requests() -> None:
    async def scene() -> None:
        cancelled: list[int] = []

        def serve(kind: int, payload: bytes, reply: LinkReply) -> None:
            reply.cancel_wait = lambda: cancelled.append(1)

        link, _ = _link(serve)
        link.data_received(_frame(LinkKind.REQUEST, 1, b""))
        link.connection_lost(None)
        assert cancelled == [1]

    run_scene(scene)


# -- data waiting to be written ----------------------------------------------------------------------------


def test_calls_to_a_peer_that_does_not_read_are_rejected() -> None:
    async def scene() -> None:
        link, wire = _link()
        answers: Answers = []
        link.call(LinkKind.REQUEST, b"1", answers.append)
        link.pause_writing()
        link.call(LinkKind.REQUEST, b"2", answers.append)
        assert answers == [NEVER_SENT]
        # Answers are still read; otherwise two processes might wait for each other.
        assert not wire.is_reading_paused
        link.data_received(_frame(LinkKind.ANSWER, 1, b"one"))
        link.resume_writing()
        link.call(LinkKind.REQUEST, b"3", answers.append)
        assert answers == [NEVER_SENT, b"one"]

    run_scene(scene)


def test_the_calls_of_one_turn_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.ipc.link.WAITING_BYTES_MAX", 100)

    async def scene() -> None:
        link, wire = _link()
        answers: Answers = []
        for _ in range(5):
            link.call(LinkKind.REQUEST, b"x" * 60, answers.append)
        assert answers == [NEVER_SENT] * 3
        await asyncio.sleep(0)
        assert len(wire.written) == 2 * (60 + HEADER.size)

    run_scene(scene)


def test_an_answering_end_stops_reading_while_its_answers_are_not_read() -> None:
    async def scene() -> None:
        link = Link(lambda kind, payload, reply: reply(b"answer"))
        wire = RecordingTransport()
        link.connection_made(wire)
        link.pause_writing()
        assert wire.is_reading_paused
        link.resume_writing()
        assert not wire.is_reading_paused

    run_scene(scene)


# -- over a socket -----------------------------------------------------------------------------------------


def _echo(kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
    reply(b"%d:%b" % (kind, payload))


async def _ask(pool: LinkPool, name: str, payload: bytes) -> bytes | None:
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    pool.call(name, LinkKind.REQUEST, payload, answer.set_result)
    return await answer


def test_two_processes_call_each_other_over_the_links_that_they_opened() -> None:
    async def scene() -> None:
        instance = secrets.token_hex(8)
        servers = [await serve_links(instance, name, _echo) for name in ("0", "1")]
        pools = [LinkPool(instance) for _ in range(2)]
        large = secrets.token_bytes(3 << 20)
        answers = await asyncio.gather(
            *(_ask(pools[n % 2], str(1 - n % 2), b"%d" % n) for n in range(200)), _ask(pools[0], "1", large)
        )
        assert answers == [*(b"1:%d" % n for n in range(200)), b"1:" + large]
        for pool in pools:
            pool.close()
        for server in servers:
            server.close()

    run_scene(scene)


def test_a_call_to_an_absent_peer_fails_at_once_and_succeeds_when_it_starts() -> None:
    async def scene() -> None:
        instance = secrets.token_hex(8)
        pool = LinkPool(instance)
        assert await asyncio.gather(*(_ask(pool, "0", b"x") for _ in range(3))) == [NEVER_SENT] * 3
        server = await serve_links(instance, "0", _echo)
        assert await _ask(pool, "0", b"x") == b"1:x"
        pool.close()
        server.close()

    run_scene(scene)


def test_a_link_is_reopened_after_its_peer_restarts() -> None:
    async def scene() -> None:
        instance = secrets.token_hex(8)
        peers: list[Link] = []

        def silent(kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
            peers[-1].close()

        loop = asyncio.get_running_loop()

        def make() -> Link:
            peers.append(Link(silent))
            return peers[-1]

        server = await loop.create_unix_server(make, address_of(instance, "0"))
        pool = LinkPool(instance)
        assert await _ask(pool, "0", b"x") is None
        server.close()
        again = await serve_links(instance, "0", _echo)
        assert await _ask(pool, "0", b"x") == b"1:x"
        pool.close()
        again.close()

    run_scene(scene)


def test_a_process_of_another_user_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()

    async def scene() -> None:
        instance = secrets.token_hex(8)
        payloads: list[bytes] = []
        server = await serve_links(instance, "0", lambda kind, payload, reply: payloads.append(payload))
        monkeypatch.setattr("shared.ipc.link.os.getuid", lambda: uid + 1)
        pool = LinkPool(instance)
        assert not await _ask(pool, "0", b"x")
        # The server rejects a link of another user too.
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(10)
            peer.connect(address_of(instance, "0"))
            peer.send(_frame(LinkKind.REQUEST, 1, b"x"))
            assert await asyncio.to_thread(_rest, peer) == b""
        assert payloads == []
        server.close()

    run_scene(scene)


def _rest(peer: socket.socket) -> bytes:
    try:
        return peer.recv(100)
    except ConnectionError:
        return b""


def test_a_peer_that_stops_reading_uses_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.ipc.link.WAITING_BYTES_MAX", 1 << 20)

    async def scene() -> None:
        instance = secrets.token_hex(8)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address_of(instance, "0"))
        listener.listen()
        pool = LinkPool(instance)
        answers: Answers = []
        payload = secrets.token_bytes(64 << 10)
        for _ in range(200):
            pool.call("0", LinkKind.REQUEST, payload, answers.append)
            await asyncio.sleep(0.001)
        refused = answers.count(NEVER_SENT)
        assert 200 - refused < (1 << 20) * 2 // len(payload) + 16
        # Once the peer reads again, calls to it are accepted.
        peer, _ = listener.accept()
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await loop.sock_recv(peer, 1 << 20)
        before = len(answers)
        pool.call("0", LinkKind.REQUEST, b"x", answers.append)
        assert len(answers) == before
        pool.close()
        peer.close()
        listener.close()

    run_scene(scene)
