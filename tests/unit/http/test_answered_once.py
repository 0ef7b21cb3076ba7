"""A change calls the engine once and has one answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from shared.http.head import NO_FIELDS
from tests.harness.shard.one_shard import OneShard
from topicsd.service.call import Call
from topicsd.service.handlers import Handlers


class Counted(Call, kw_only=True, eq=False):
    answers: list[int]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.answers.append(status)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("put_topic", b'{"ttl_ms":5}'),
        ("append", b'{"records":[{"data":1}]}'),
        ("delete_records", b'{"before_seq":9}'),
        ("delete_topic", b""),
    ],
)
def test_a_change_writes_one_frame_and_has_one_answer(operation: str, body: bytes) -> None:
    stage = OneShard()
    stage.append("t", 1, 2)
    frames = stage.shard.log.frame_count
    fields = msgspec.structs.replace(NO_FIELDS, content_type="application/json")
    call = Counted("t", "", fields, body, 0.0, answers=[])
    Handlers(stage.shard).start(operation, call)
    stage.settle()
    assert call.answers == [200]
    assert stage.shard.log.frame_count == frames + 1
