"""An HTTP/2 connection under random input: it answers or ends, and its counts return to zero."""

from __future__ import annotations

import random
import struct

import pytest
from hpack import Encoder

from shared.http.http2_preface import PREFACE
from tests.harness.clients.h2_client import frame, request_headers
from tests.harness.stage.one_connection import AWAY, HOME, OneConnection
from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http2.connection import Http2Connection

BODY = b'{"records":[{"data":1}]}'
REQUESTS = (("POST", ""), ("POST", ""), ("POST", "/diff"), ("GET", ""), ("HEAD", ""), ("PUT", ""))
BODIES = (BODY, BODY, BODY, b'{"wait_ms":30000}', b"{}", b"no JSON")


class Client:
    """A maker of valid frames, and of some invalid ones."""

    def __init__(self, rng: random.Random, wildness: float) -> None:
        self._rng = rng
        self._wildness = wildness
        self._encoder = Encoder()
        self._last_id = -1
        self._unfinished: list[int] = []

    def next(self) -> bytes:
        rng = self._rng
        if rng.random() < self._wildness:
            return self._wild()
        makers = (self._request, self._request, self._request, self._body, self._reset, self._control)
        return rng.choice(makers)()

    def _request(self) -> bytes:
        rng = self._rng
        self._last_id += 2
        method, rest = rng.choice(REQUESTS)
        headers = request_headers(method, f"/v0/topics/{rng.choice((HOME, HOME, AWAY))}{rest}")
        headers.append((b"content-type", b"application/json"))
        body = rng.choice(BODIES)
        has_length = rng.random() < 0.5
        if has_length:
            headers.append((b"content-length", b"%d" % len(body)))
        if rng.random() < 0.1:
            headers.append(rng.choice(((b"content-encoding", b"gzip"), (b"x", b"a\x01"), (b"expect", b"x"))))
        block = self._encoder.encode(headers)
        if not has_length and rng.random() < 0.3:
            return frame(1, 5, self._last_id, block)
        if not has_length and rng.random() < 0.3:
            self._unfinished.append(self._last_id)
            return frame(1, 4, self._last_id, block)
        if rng.random() < 0.2:
            block_frames = frame(1, 0, self._last_id, block[:9]) + frame(9, 4, self._last_id, block[9:])
        else:
            block_frames = frame(1, 4, self._last_id, block)
        return block_frames + frame(0, 1, self._last_id, body)

    def _body(self) -> bytes:
        if not self._unfinished:
            return b""
        at = self._rng.randrange(len(self._unfinished))
        return frame(0, 1, self._unfinished.pop(at), self._rng.choice(BODIES))

    def _reset(self) -> bytes:
        if self._last_id < 1:
            return b""
        return frame(3, 0, self._rng.randrange(1, self._last_id + 1, 2), bytes([0, 0, 0, 8]))

    def _control(self) -> bytes:
        rng = self._rng
        opened = rng.choice((0, max(0, self._last_id)))
        return rng.choice(
            (
                frame(8, 0, opened, struct.pack(">I", rng.choice((1, 100, 70_000)))),
                frame(4, 0, 0, struct.pack(">HI", 4, rng.choice((0, 1, 100, 65535)))),
                frame(6, 0, 0, rng.randbytes(8)),
                frame(2, 0, 1, bytes(4) + b"\x0f"),
            )
        )

    def _wild(self) -> bytes:
        rng = self._rng
        stream_id = rng.choice((0, 1, max(0, self._last_id), rng.randrange(20)))
        payload = rng.randbytes(rng.choice((0, 4, 5, 6, 8, rng.randrange(40))))
        return frame(rng.choice((*range(10), 0xEE)), rng.choice((0, 1, 4, 5, 8, 255)), stream_id, payload)


@pytest.mark.parametrize("seed", range(60))
def test_a_connection_answers_or_ends_whatever_it_receives(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    stage = OneConnection()
    wire = RecordingTransport()
    connection = Http2Connection(stage.dispatch, stage.heads, stage)
    connection.connection_made(wire)
    client = Client(rng, rng.choice((0.0, 0.0, 0.01, 0.3)))
    connection.data_received(PREFACE + frame(4, 0, 0))
    for _ in range(60):
        data = b"".join(client.next() for _ in range(rng.randrange(1, 6)))
        if data and rng.random() < 0.003:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(1) + data[at + 1 :]
        at = rng.randrange(len(data) + 1)
        # After the end another protocol has the connection.
        for segment in (data[:at], data[at:]):
            if wire.protocol is None:
                connection.data_received(segment)
        act = rng.random()
        if wire.protocol is not None:
            break
        if act < 0.1:
            connection.pause_writing()
        elif act < 0.3:
            connection.resume_writing()
        elif act < 0.35:
            connection.check_timeouts(stage.one.clock.monotonic() + rng.choice((5, 11)))
        elif act < 0.36:
            connection.drain()
        if act < 0.7:
            stage.one.settle()
    if wire.protocol is None:
        connection.resume_writing()
        stage.one.settle()
    connection.connection_lost(None)
    for _, _, _, done in stage.links.requests:
        done(b"")
    stage.one.settle()
    assert [record for record in caplog.records if record.exc_info] == []
    requests = connection._requests
    counts = (requests._unsent, requests._working_bytes, len(requests._in_progress), len(requests._exchanges))
    assert counts == (0, 0, 0, 0)
    assert (len(requests.sender._ready), len(requests.sender._blocked)) == (0, 0)
