"""The results of a request for several partitions, and the status that follows from them.

The status is 200 when each partition has succeeded, 503 when each was refused since the broker has too much
to do, and else 409. `error_type` is the code of the refusal as a type name; `BackPressureRejected` is the
one that the leaderless log gives to 503.

    >>> error_type("topic_fenced"), error_type("throttled")
    ('TopicFenced', 'BackPressureRejected')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shared.contract.errors import RETRY_AFTER_MS, STATUS, THROTTLED, Refusal
from shared.http.answer import refusal_fields
from topicsd.service.call import Call

BACK_PRESSURE: Final = "BackPressureRejected"


def error_type(code: str) -> str:
    return BACK_PRESSURE if code == THROTTLED else "".join(map(str.capitalize, code.split("_")))


class PartitionFailure(msgspec.Struct, gc=False):
    topic: str
    partition: int
    ok: bool
    error_type: str
    error: str


def failure(topic: str, partition: int, refusal: Refusal) -> PartitionFailure:
    assert refusal.code in STATUS
    return PartitionFailure(topic, partition, False, error_type(refusal.code), refusal.message)


def send_results(
    call: Call, parts: Sequence[bytes], failures: Sequence[PartitionFailure], success_count: int
) -> None:
    """Send the rendered results of all partitions, in the order of the request."""
    error_count = len(failures)
    end = b'],"success_count":%d,"error_count":%d}' % (success_count, error_count)
    body = [b'{"results":[', b",".join(parts), end]
    status, fields = 200, b""
    if error_count:
        is_busy = not success_count and all(one.error_type == BACK_PRESSURE for one in failures)
        status = 503 if is_busy else 409
        fields = refusal_fields(Refusal(THROTTLED, "", retry_after_ms=RETRY_AFTER_MS)) if is_busy else b""
    call.send_parts(body, sum(map(len, body)), status, fields)
