"""An upload of lines beside an engine that answers when the test asks: room, retries, where batches end."""

from __future__ import annotations

import gzip
import json
import random
from types import SimpleNamespace
from typing import Any, cast

from shared.contract.endpoints import Match, resolve
from shared.contract.errors import Refusal, limit_reached, throttled
from shared.http.head import Fields
from shared.settings.settings import Settings
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop
from topicsd.service.call import Call
from topicsd.service.dispatch import Dispatch
from topicsd.service.records.line_upload import (
    BATCH_BYTES,
    BATCH_LINES_MAX,
    GATHERED_BYTES_MAX,
    INFLATED_AT_ONCE,
    THROTTLED_SECONDS_MAX,
    LineUpload,
)
from topicsd.service.request_counts import RequestCounts

MIB = 1 << 20
LINE = b'"' + b"x" * 98 + b'"\n'


class Answered(Call, kw_only=True, eq=False):
    body_sent: bytes = b""
    status: int = 0

    def send_parts(self, parts: Any, length: int, status: int = 200, fields: bytes = b"") -> None:
        self.status, self.body_sent = status, b"".join(parts)


class Stage:
    """An upload whose batches wait for their answers."""

    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.waiting: list[Call] = []
        self.batches: list[bytes] = []
        self.keys: list[str] = []
        self.changes = 0
        self._seq = 0
        self.counts = RequestCounts(self.clock)
        handlers = SimpleNamespace(
            settings=Settings(), loop=self.loop, monotonic=self.clock.monotonic, counts=self.counts
        )
        keys = SimpleNamespace(are_required=False)
        dispatch = SimpleNamespace(handlers=handlers, keys=keys, start_with_key=self._start)
        match = resolve("POST", "/v0/topics/t/records")
        assert isinstance(match, Match)
        upload_fields = Fields(content_type="application/x-ndjson", **fields)
        self.upload = LineUpload(cast(Dispatch, dispatch), match, upload_fields, "", self._on_change)

    def _on_change(self) -> None:
        self.changes += 1

    def _start(self, key: object, operation: str, call: Call) -> None:
        assert operation == "append_record"
        assert not self.waiting, "one batch at a time"
        self.waiting.append(call)

    def answer(self) -> None:
        call = self.waiting.pop()
        self.batches.append(call.body)
        self.keys.append(call.fields.idempotency_key)
        count = sum(1 for line in call.body.split(b"\n") if line.strip())
        first, self._seq = self._seq + 1, self._seq + count
        answer = {
            "first_seq": first,
            "last_seq": self._seq,
            "head_seq": self._seq,
            "count": count,
            "created": False,
            "deduped": False,
            "durability": "disk",
        }
        call.send(json.dumps(answer).encode())
        self.loop.run_until_idle()

    def refuse(self, refusal: Refusal) -> None:
        self.waiting.pop().refuse(refusal)
        self.loop.run_until_idle()

    def end(self) -> Answered:
        self.upload.finish()
        call = Answered("t", "", Fields(), b"", 0.0)
        self.upload.answer(call)
        while self.waiting:
            self.answer()
        self.loop.run_until_idle()
        return call


def test_a_client_waits_while_a_batch_is_on_its_way_and_enough_is_gathered() -> None:
    stage = Stage()
    part = LINE * 600
    sent = 0
    while not stage.upload.is_full:
        assert stage.upload.write(part) is None
        stage.loop.run_until_idle()
        sent += len(part)
        assert sent < BATCH_BYTES + GATHERED_BYTES_MAX + 2 * len(part)
    assert len(stage.waiting) == 1
    stage.answer()
    assert not stage.upload.is_full
    assert stage.changes > 0
    assert b"".join([*stage.batches]) != b""
    assert (stage.counts.uploads, stage.counts.upload_lines) == (1, stage.batches[0].count(b"\n"))
    assert stage.end().status == 200
    assert b"".join(stage.batches) == part * (sent // len(part))
    written = sent // len(LINE)
    assert (stage.counts.uploads, stage.counts.upload_lines, stage.counts.upload_records) == (
        1,
        written,
        written,
    )


def test_a_compressed_body_is_inflated_as_far_as_there_is_room() -> None:
    stage = Stage(content_encoding="gzip")
    stage.upload.write(gzip.compress(LINE * 1_000_000))
    stage.loop.run_until_idle()
    assert stage.upload.is_full
    assert len(stage.waiting[0].body) <= BATCH_BYTES + len(LINE)
    stage.upload.finish()
    while stage.waiting:
        assert len(stage.waiting[0].body) <= BATCH_BYTES + INFLATED_AT_ONCE
        stage.answer()
    assert b"".join(stage.batches) == LINE * 1_000_000


def test_blank_lines_that_inflate_to_very_many_are_skipped_a_few_at_a_time() -> None:
    stage = Stage(content_encoding="gzip")
    stage.upload.write(gzip.compress(b"\n" * (8 * MIB) + b"1\n"))
    upload, turns = stage.upload, 0
    assert not upload.is_idle
    assert upload.is_full
    while not stage.waiting:
        before = upload._lines
        stage.loop.run_turn()
        turns += 1
        assert upload._lines - before <= 3 * BATCH_LINES_MAX, "the loop serves others between the turns"
    assert turns > 8 * MIB // BATCH_LINES_MAX // 3
    call = stage.end()
    assert b"".join(stage.batches).strip() == b"1"
    assert json.loads(call.body_sent)["lines"] == 8 * MIB + 1


def test_short_lines_are_not_inflated_faster_than_they_are_written() -> None:
    stage = Stage(content_encoding="gzip")
    stage.upload.write(gzip.compress(b"1\n" * (2 * MIB)))
    for _ in range(20):
        stage.answer()
        assert stage.upload._size <= GATHERED_BYTES_MAX + INFLATED_AT_ONCE
    stage.upload.cancel()


def test_a_compressed_body_without_its_end_writes_no_part_of_a_line() -> None:
    stage = Stage(content_encoding="gzip")
    stage.upload.write(gzip.compress(b"\n" * (BATCH_LINES_MAX + 1) + b"1234567")[:-12])
    call = stage.end()
    assert stage.batches == []
    assert "it is truncated" in json.loads(call.body_sent)["error"]["message"]


def test_batches_with_a_key_end_at_the_same_lines_however_the_body_arrives() -> None:
    generator = random.Random(5)
    lines = [b'"%b"' % (b"y" * generator.choice([1, 10, 300, 40_000])) for _ in range(3000)]
    lines[40:40] = [b""] * (BATCH_LINES_MAX + 7)
    body = b"\n".join(lines)
    expected: list[bytes] = []
    for largest in (10 * MIB, 100_000, 3000):
        stage = Stage(idempotency_key="k")
        at = 0
        while at < len(body):
            size = generator.randint(1, largest)
            stage.upload.write(body[at : at + size])
            at += size
            stage.loop.run_until_idle()
            while stage.waiting and generator.random() < 0.5:
                stage.answer()
        assert stage.end().status == 200
        assert b"".join(expected or stage.batches).strip() == body.strip()
        expected = expected or stage.batches
        assert stage.batches == expected
        assert stage.keys[0] == "k:1"
        assert len(set(stage.keys)) == len(stage.batches)


def test_a_throttled_batch_is_sent_again_for_a_while() -> None:
    stage = Stage()
    stage.upload.write(LINE)
    stage.loop.run_until_idle()
    body = stage.waiting[0].body
    stage.refuse(throttled("commit queue full"))
    assert not stage.waiting
    stage.loop.advance(1000)
    stage.loop.run_until_idle()
    assert stage.waiting[0].body == body
    for _ in range(int(THROTTLED_SECONDS_MAX) + 2):
        if not stage.waiting:
            break
        stage.refuse(throttled("commit queue full"))
        stage.loop.advance(1000)
        stage.loop.run_until_idle()
    assert stage.upload.refusal is not None
    assert stage.upload.refusal.code == "throttled"


def test_a_cap_ends_the_upload_at_once() -> None:
    stage = Stage()
    stage.upload.write(LINE)
    stage.loop.run_until_idle()
    stage.refuse(limit_reached("max_topics", 1, "no more topics can be created"))
    assert stage.upload.refusal is not None
    assert stage.upload.write(LINE) is stage.upload.refusal


def test_a_failure_waits_for_the_batch_on_its_way() -> None:
    stage = Stage()
    stage.upload.write(LINE)
    stage.loop.run_until_idle()
    stage.upload.stop(throttled("the server stops"))
    stage.loop.run_until_idle()
    assert stage.upload.refusal is None
    stage.answer()
    assert stage.upload.refusal is not None
    assert stage.upload.refusal.detail == {"written": {"lines": 1, "count": 1, "first_seq": 1, "last_seq": 1}}


def test_a_client_that_is_gone_sends_no_more() -> None:
    stage = Stage()
    stage.upload.write(LINE * 10)
    stage.loop.run_until_idle()
    stage.upload.write(LINE)
    stage.upload.cancel()
    stage.answer()
    assert not stage.waiting
