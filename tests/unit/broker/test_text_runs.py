"""Runs of plain records: what `decode_frames` returns, or nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from topicsd.broker.frames_v1 import (
    FRAMES_V1,
    SEGMENT_V1,
    NewFrame,
    Rebase,
    Texts,
    decode_frames,
    encode_frames,
)
from topicsd.broker.read.tail_cache import CHUNK_OVERHEAD, TEXT_OVERHEAD, TailCache, TailChunk
from topicsd.broker.read.text_runs import records_of_texts, text_run

TOPIC = (1 << 64) + 7
POINTER_BYTES = 8
VALUES = [b'"%b"' % (b"x" * (number * 37 % 200)) for number in range(12)]
FIRST = 41
LAST = FIRST + len(VALUES) - 1


def chunk_of(body: bytes, encoding: str = FRAMES_V1, incarnation: int = TOPIC, last: int = LAST) -> TailChunk:
    return TailChunk("t", Rebase(incarnation, FIRST, last), body, encoding)


def plain_body(encoding: str = FRAMES_V1) -> bytes:
    return encode_frames(Texts(VALUES), TOPIC, FIRST if encoding == SEGMENT_V1 else 3, 1000)


def chunk_of_texts() -> TailChunk:
    return TailChunk.of_texts("t", Rebase(TOPIC, FIRST, LAST), Texts(VALUES), 1000, len(plain_body()))


@pytest.mark.parametrize("encoding", [FRAMES_V1, SEGMENT_V1])
@pytest.mark.parametrize("has_texts", [False, True])
def test_a_run_is_what_the_decoder_returns(encoding: str, has_texts: bool) -> None:
    body = plain_body(encoding)
    kept = chunk_of(body, encoding)
    for bytes_max in (1, 46, 47, 100, 200, 333, 1000, len(body) - 1, len(body), 1 << 20):
        for seq in (*range(LAST, FIRST - 1, -3), *range(FIRST, LAST + 1)):
            fresh = chunk_of_texts() if has_texts else chunk_of(body, encoding)
            model = decode_frames(body, kept.rebase, seq, bytes_max, encoding)
            for chunk in (fresh, kept):
                run = text_run(chunk, seq, bytes_max)
                assert run is not None
                assert run.first_seq == seq
                assert run.values == [record.data for record in model.records]
                assert (run.next_seq, run.byte_count) == (model.next_seq, model.byte_count)
                assert run.are_strings == (chunk.texts is not None)
    assert kept.plain_count == len(VALUES)


def test_texts_are_the_records_and_the_frames_that_they_would_be() -> None:
    chunk, body = chunk_of_texts(), plain_body()
    assert decode_frames(chunk.body, chunk.rebase) == decode_frames(body, chunk.rebase)
    assert chunk.byte_count == len(chunk.body) == len(body)
    for seq in range(FIRST, LAST + 1):
        for bytes_max in (1, 47, 333, len(body)):
            model = decode_frames(body, chunk.rebase, seq, bytes_max)
            assert records_of_texts(chunk, seq, bytes_max) == model
        some = chunk.frames_of(seq - FIRST, len(VALUES) - 1)
        assert (some.rebase.first_seq, some.rebase.last_seq) == (seq, LAST - 1)
        records = decode_frames(body, chunk.rebase, seq).records[:-1]
        assert (decode_frames(some.body, some.rebase).records if records else []) == records


@pytest.mark.parametrize(
    "other", [{"tag": "a"}, {"node": "n"}, {"meta": b"{}"}, {"is_bytes": True}, {"tag": "a", "node": "n"}]
)
def test_another_frame_ends_the_runs(other: dict[str, Any]) -> None:
    frames = [NewFrame(value) for value in VALUES]
    frames[5] = NewFrame(b'"other"', **other)
    chunk = chunk_of(encode_frames(frames, TOPIC, 1, 1000))
    for _ in range(2):
        assert text_run(chunk, FIRST, 1 << 20) is None
        assert text_run(chunk, FIRST + 5, 1) is None
        before, after = text_run(chunk, FIRST + 4, 1), text_run(chunk, FIRST + 6, 1 << 20)
        assert before is not None
        assert before.values == VALUES[4:5]
        assert after is not None
        assert after.values == VALUES[6:]


def test_no_run_has_a_record_that_is_damaged() -> None:
    body = plain_body()
    for at in range(0, len(body), 3):
        damaged = bytearray(body)
        damaged[at] ^= 0x55
        chunk = chunk_of(bytes(damaged))
        for seq, bytes_max in ((FIRST, 1 << 20), (FIRST, 1), (FIRST + 6, 400), (LAST, 1)):
            run = text_run(chunk, seq, bytes_max)
            assert run is None or run.values == VALUES[seq - FIRST :][: len(run.values)]
        assert text_run(chunk_of(bytes(damaged)), FIRST, 1 << 20) is None


@pytest.mark.parametrize("size", [0, 3, 4, 30, 45, 46, 200, -1, -9])
def test_a_chunk_that_is_cut_has_no_run_of_all(size: int) -> None:
    assert text_run(chunk_of(plain_body()[:size]), FIRST, 1 << 20) is None


def test_what_is_not_of_the_chunk_has_no_run() -> None:
    body = plain_body()
    assert text_run(chunk_of(body, incarnation=TOPIC + 1), FIRST, 1 << 20) is None
    assert text_run(chunk_of(body, encoding="frames-v9"), FIRST, 1 << 20) is None
    assert text_run(chunk_of(body, SEGMENT_V1), FIRST, 1 << 20) is None
    assert text_run(chunk_of(body, last=LAST + 1), FIRST, 1 << 20) is None
    assert text_run(chunk_of(body), FIRST - 1, 1 << 20) is None
    assert text_run(chunk_of(body), LAST + 1, 1 << 20) is None


def test_texts_and_frames_share_the_bound_of_the_cache() -> None:
    cache = TailCache(20_000)
    chunks: list[TailChunk] = []
    for number in range(40):
        name, rebase = f"t{number % 3}", Rebase(7, 1 + number, 1 + number)
        if number % 4:
            chunk = TailChunk.of_texts(name, rebase, Texts([b'"x"']), 1000, 1000)
        else:
            chunk = TailChunk(name, rebase, b"x" * 1000, FRAMES_V1)
        chunks.append(chunk)
        cache.add(chunk)
        if number == 30:
            cache.drop("t1")
        kept = [one for one in chunks if cache.find(one.name, 7, one.rebase.first_seq) is one]
        texts = sum(one.texts is not None for one in kept)
        assert cache.size_bytes == len(kept) * (1000 + CHUNK_OVERHEAD) + texts * TEXT_OVERHEAD
        assert cache.size_bytes <= 20_000
        assert not any(one.texts for one in chunks if one.is_dropped)
    assert chunks[-1] in kept


def test_a_text_in_memory_is_not_larger_than_its_frame_and_the_overhead() -> None:
    for size in (2, 3, 15, 16, 100, 1000):
        text = b'"%b"' % (b"x" * (size - 2))
        in_memory = -(-sys.getsizeof(text) // 16) * 16 + POINTER_BYTES
        assert in_memory <= len(encode_frames(Texts([text]), 1, 1, 1)) + TEXT_OVERHEAD
