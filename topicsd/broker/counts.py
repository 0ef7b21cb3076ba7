"""What a broker has served, for its metrics. Each number only grows, and begins at 0 with the process."""

from __future__ import annotations

import msgspec


class BrokerCounts(msgspec.Struct):
    """Appends to shared topics at any endpoint, and reads at `/consume`: feeds share their reads."""

    produce_requests: int = 0
    produce_records: int = 0
    produce_bytes: int = 0
    produce_errors: int = 0
    """Groups of records that were refused, for one topic each."""
    produce_throttled: int = 0
    """Those of them that were refused since the queue is full."""
    consume_requests: int = 0
    consume_records: int = 0
    consume_bytes: int = 0
    consume_errors: int = 0
    consume_waits: int = 0
    """Requests that waited at the heads of their topics."""
