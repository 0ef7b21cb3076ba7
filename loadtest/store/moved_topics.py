"""A topic that is sealed at one node and adopted by another, and reads of it from the store there.

The pause is the longest time for which a client that writes to both nodes got no write accepted. A node that
has adopted a topic has its records only in the store, so its reads measure the store.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, create_topics
from loadtest.store.nodes import (
    JSON,
    UNLIMITED,
    FollowingWriter,
    StorePlace,
    ask,
    fill,
    timed,
    wait_for_export,
)
from topicsd.disk.fs import RealFs
from topicsd.segment.entry import DATA as DATA_SUFFIX
from topicsd.store.open_store import open_store

RECORDS = 1_000_000
READ_RECORDS = 300_000
LIMIT = 1000
RANGE_BYTES = 8 << 20
NAME = "x"
SETTLE_SECONDS = 1.0


def move(s3_url: str = "", is_exported: bool = False, is_limited: bool = False) -> Callable[[Bench], Result]:
    """Move a topic of a million records; `is_limited` is with the default background rate."""

    def measure(bench: Bench) -> Result:
        place = StorePlace(bench, s3_url)
        settings = place.settings | ({} if is_limited else UNLIMITED)
        settings |= {"TOPICS_EXPORT_INTERVAL_MS": "1000"} if is_exported else {}
        with bench.subjects.server(1, **settings) as one, bench.subjects.server(1, **settings) as other:
            create_topics(one.port, bench.home, [NAME])
            fill(one.port, NAME, RECORDS)
            waited = wait_for_export(one.port, NAME, RECORDS) if is_exported else 0.0
            with FollowingWriter(NAME, one, other) as writer:
                time.sleep(SETTLE_SECONDS)
                seal, row = timed(lambda: ask(one.port, "POST", f"/v0/topics/{NAME}/seal", b"{}"))
                adopt, _ = timed(lambda: ask(other.port, "POST", f"/v0/topics/{NAME}/adopt", b"{}"))
                time.sleep(SETTLE_SECONDS)
            head = ask(other.port, "GET", f"/v0/topics/{NAME}")["head_seq"]
            if head != RECORDS + writer.acknowledged:
                raise NotMeasured(
                    f"{RECORDS + writer.acknowledged} records were accepted, the head is {head}"
                )
        note = f"seal {seal:.2f} s, adopt {adopt:.2f} s, exported to {row['exported_to']}"
        if is_exported:
            note += f"; exported {waited:.1f} s after the last write"
        return Result(line="", title="", unit="s of pause", value=writer.longest_pause, note=note)

    return measure


def history(s3_url: str = "") -> Callable[[Bench], Result]:
    """Read a topic that is only in the store, beside a bare program that gets the same bytes in ranges."""

    def measure(bench: Bench) -> Result:
        place = StorePlace(bench, s3_url)
        settings = place.settings | UNLIMITED | {"TOPICS_STORE_CACHE_BYTES": "256 MiB"}
        first: list[float] = []
        again: list[float] = []
        bare: list[float] = []
        for _ in range(bench.rounds):
            with bench.subjects.server(1, **settings) as one, bench.subjects.server(1, **settings) as other:
                name = f"{NAME}{len(first)}"
                create_topics(one.port, bench.home, [name])
                fill(one.port, name, READ_RECORDS)
                ask(one.port, "POST", f"/v0/topics/{name}/seal", b"{}")
                ask(other.port, "POST", f"/v0/topics/{name}/adopt", b"{}")
                bare.append(READ_RECORDS / timed(lambda: read_objects(place.url))[0] * (len(bare) + 1))
                first.append(read_all(other, name))
                again.append(read_all(other, name))
        value, other_value, ceiling = (sorted(one)[len(one) // 2] for one in (first, again, bare))
        ratio = sorted(ours / theirs for ours, theirs in zip(first, bare, strict=True))[len(first) // 2]
        note = f"{other_value:,.0f} records/s the second time"
        return Result(
            line="", title="", unit="records/s", value=value, ceiling=ceiling, ratio=ratio, note=note
        )

    return measure


def read_all(server: Running, name: str) -> float:
    """Return the records/s of one reader that asks for page after page."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    started = time.perf_counter()
    for seq in range(0, READ_RECORDS, LIMIT):
        body = b'{"from_seq":%d,"limit":%d}' % (seq, LIMIT)
        connection.request("POST", f"/v0/topics/{name}/diff", body, JSON)
        answer = connection.getresponse()
        if (count := answer.read().count(b'"$seq"')) != LIMIT:
            raise NotMeasured(f"a diff of {LIMIT} from {seq} answered {answer.status} with {count} records")
    connection.close()
    return READ_RECORDS / (time.perf_counter() - started)


def read_objects(url: str) -> int:
    """Read all records in the store in ranges, as the server does; return their bytes."""
    store = open_store(url, RealFs())
    total = 0
    for info in list(store.list("segments/")):
        if info.key.endswith(DATA_SUFFIX):
            for offset in range(0, info.size, RANGE_BYTES):
                total += len(store.read(info.key, offset, RANGE_BYTES))
    store.close()
    return total
