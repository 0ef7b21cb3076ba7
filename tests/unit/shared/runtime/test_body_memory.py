"""Bodies in shared memory: a mapping equals the bytes received, and no descriptor leaks."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest

from shared.runtime.body_memory import BLOCK_BYTES, SHARED_BYTES_MIN, BodyBuffer, SharedBody, open_body

LARGE = b'{"records":[{"data":"%b"}]}' % (b"x" * SHARED_BYTES_MIN)


def shared(content: bytes, step: int = 100_000) -> SharedBody:
    buffer = BodyBuffer()
    for at in range(0, len(content), step):
        buffer.write(content[at : at + step])
    assert buffer.tell() == len(content)
    body = buffer.finish()
    assert isinstance(body, SharedBody)
    return body


def mapped(content: bytes) -> bytes:
    """Map a body padded to the minimum size of a shared body."""
    return shared(content.ljust(SHARED_BYTES_MIN)).mapped()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_small_body_is_bytes() -> None:
    buffer = BodyBuffer()
    buffer.write(b"some ")
    buffer.write(b"bytes")
    assert buffer.finish() == b"some bytes"


@pytest.mark.parametrize("step", [4096 + 1, 1 << 20, len(LARGE)])
def test_a_large_body_is_what_arrived(step: int) -> None:
    body = shared(LARGE, step)
    assert len(body) == len(LARGE)
    opened = open_body(body.ticket())
    assert opened is not None
    for opened_body in (body.content(), body.mapped(), opened):
        assert bytes(opened_body) == LARGE


def test_a_mapping_outlives_the_descriptor_and_is_decoded_as_bytes_are() -> None:
    body = shared(LARGE)
    opened = open_body(body.ticket())
    assert opened is not None
    del body
    assert msgspec.json.decode(opened) == msgspec.json.decode(LARGE)


def test_no_descriptor_is_left_open() -> None:
    before = descriptors()
    body = shared(LARGE)
    opened = open_body(body.ticket())
    dropped = BodyBuffer()
    dropped.write(LARGE)
    del body, opened, dropped
    assert descriptors() == before


def test_a_ticket_of_another_body_opens_nothing(caplog: pytest.LogCaptureFixture) -> None:
    body, other = shared(LARGE), shared(LARGE)
    pid, fd, inode, size = struct.unpack("<IIQQ", body.ticket())
    other_fd = struct.unpack("<IIQQ", other.ticket())[1]
    for wrong in ((pid, other_fd, inode, size), (pid, fd, inode, size - 1), (pid, fd, inode + 1, size)):
        assert open_body(struct.pack("<IIQQ", *wrong)) is None
        assert "not the announced body" in caplog.text
        caplog.clear()
    del body
    assert open_body(struct.pack("<IIQQ", pid, fd, inode, size)) is None
    assert "No such file" in caplog.text


def test_a_body_stays_in_this_process_where_there_are_no_memory_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*about: object) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    buffer = BodyBuffer()
    for _ in range(3):
        buffer.write(LARGE)
    assert buffer.finish() == LARGE * 3


def test_a_mapped_body_answers_as_bytes_do() -> None:
    edge = b"a" * (BLOCK_BYTES - 3)
    for content in (b"abc\\u0000", edge + b"\\u0000{{", "é".encode(), edge + b"\\\\ud", b""):
        padded = content.ljust(SHARED_BYTES_MIN)
        body = mapped(content)
        assert type(body).__name__ == "MappedBody"
        assert len(body) == len(padded)
        assert body.isascii() == padded.isascii()
        assert body.count(b"{") == padded.count(b"{")
        for pattern in (ord("\\"), ord("{"), 0xC3, b"\\u0000", b"\\ud", b"\\uD"):
            assert (pattern in body) == (pattern in padded)
        assert body[:10] == padded[:10]
        assert body[BLOCK_BYTES - 5 : BLOCK_BYTES + 5] == padded[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
