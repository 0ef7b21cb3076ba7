"""Frames are cut whole from bytes, and checked before the library receives them."""

from __future__ import annotations

import random
import struct

import pytest
from h2.errors import ErrorCodes

from shared.http.http2_preface import PREFACE
from tests.harness.clients.h2_client import frame
from topicsd.http.http2.frames import (
    FRAME_BYTES_MAX,
    HEADER_BLOCK_BYTES_MAX,
    SMALL_DATA_BYTES,
    FrameCutter,
    Http2Frame,
)

DATA, HEADERS, SETTINGS, PUSH_PROMISE, PING, CONTINUATION = 0, 1, 4, 5, 6, 9
FIRST = frame(SETTINGS, 0, 0)


def _cutter_after(*frames: bytes) -> FrameCutter:
    cutter = FrameCutter()
    cutter.feed(FIRST + b"".join(frames))
    assert cutter.next() == (SETTINGS, FIRST, 1)
    return cutter


def test_frames_are_unchanged_however_they_are_split() -> None:
    rng = random.Random(5)
    sent = [FIRST] + [frame(PING, 0, 0, rng.randbytes(8)) for _ in range(50)]
    sent += [frame(DATA, 0, 1, rng.randbytes(rng.randrange(1000))) for _ in range(50)]
    data = b"".join(sent)
    for size in (1, 7, 9, 100, 100_000):
        cutter, received = FrameCutter(), []
        for at in range(0, len(data), size):
            cutter.feed(data[at : at + size])
            while isinstance(one := cutter.next(), Http2Frame):
                received.append(one.data)
        assert received == sent
        assert not cutter.has_partial


@pytest.mark.parametrize("cut", range(len(PREFACE) + 1))
def test_the_preface_is_recognized_when_it_is_complete(cut: int) -> None:
    cutter = FrameCutter()
    cutter.feed(PREFACE[:cut])
    assert cutter.take_preface() is (True if cut == len(PREFACE) else None)
    if cut < len(PREFACE):
        other = FrameCutter()
        other.feed(PREFACE[:cut] + b"?")
        assert other.take_preface() is False
        cutter.feed(PREFACE[cut:] + FIRST)
        assert cutter.take_preface() is True
    else:
        cutter.feed(FIRST)
    assert cutter.next() == (SETTINGS, FIRST, 1)


def test_a_frame_that_is_too_long_is_refused_at_its_first_bytes() -> None:
    longest = frame(DATA, 0, 1, b"x" * FRAME_BYTES_MAX)
    assert _cutter_after(longest).next() == (DATA, longest, 0)
    assert _cutter_after((FRAME_BYTES_MAX + 1).to_bytes(3) + bytes(6)).next() == ErrorCodes.FRAME_SIZE_ERROR


def test_the_first_frame_must_be_settings_and_a_push_promise_is_refused() -> None:
    cutter = FrameCutter()
    cutter.feed(frame(PING, 0, 0, bytes(8))[:9])
    assert cutter.next() == ErrorCodes.PROTOCOL_ERROR
    assert _cutter_after(frame(PUSH_PROMISE, 4, 1, bytes(5))).next() == ErrorCodes.PROTOCOL_ERROR


def test_each_header_block_is_bounded_over_all_its_frames() -> None:
    rest = HEADER_BLOCK_BYTES_MAX - 2 * FRAME_BYTES_MAX
    whole = [
        frame(HEADERS, 0, 1, b"x" * FRAME_BYTES_MAX),
        frame(CONTINUATION, 0, 1, b"x" * FRAME_BYTES_MAX),
        frame(CONTINUATION, 4, 1, b"x" * rest),
    ]
    cutter = _cutter_after(*whole, *whole[:2], frame(CONTINUATION, 4, 1, b"x" * (rest + 1)))
    inside = []
    for _ in range(5):
        assert isinstance(cutter.next(), Http2Frame)
        inside.append(cutter.is_in_block)
    assert inside == [True, True, False, True, True]
    assert cutter.next() == ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    ("kind", "flags", "length", "cost"),
    [
        (DATA, 0, SMALL_DATA_BYTES, 0),
        (DATA, 0, SMALL_DATA_BYTES - 1, 1),
        (DATA, 0, 0, 1),
        (DATA, 1, 0, 0),
        (HEADERS, 5, 5, 1),
        (PING, 0, 8, 1),
        (0xEE, 0, 5000, 1),
    ],
)
def test_frames_that_request_nothing_have_a_cost(kind: int, flags: int, length: int, cost: int) -> None:
    one = _cutter_after(frame(kind, flags, 1, bytes(length))).next()
    assert isinstance(one, Http2Frame)
    assert (one.type, one.cost) == (kind, cost)


def test_unknown_settings_are_removed() -> None:
    known = b"".join(struct.pack(">HI", n, n) for n in range(1, 7))
    unknown = b"".join(struct.pack(">HI", n, n) for n in (0, 7, 9, 0xFFFF))
    one = _cutter_after(frame(SETTINGS, 0, 0, unknown + known + unknown)).next()
    assert isinstance(one, Http2Frame)
    assert one.data == frame(SETTINGS, 0, 0, known)
    odd = frame(SETTINGS, 0, 0, b"12345")
    assert _cutter_after(odd).next() == (SETTINGS, odd, 1)


@pytest.mark.parametrize(
    ("part", "awaits_head"),
    [(b"\0", True), (frame(DATA, 0, 1, b"xx")[:-1], False), (frame(HEADERS, 5, 1, b"xx")[:-1], True)],
)
def test_only_data_frames_have_the_timeout_of_a_body(part: bytes, awaits_head: bool) -> None:
    cutter = _cutter_after(part)
    assert cutter.next() is None
    assert (cutter.has_partial, cutter.awaits_head, cutter.pending_bytes) == (True, awaits_head, len(part))
