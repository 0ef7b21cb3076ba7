"""What a machine loses that dies with its disk, while a store has what was exported.

The node is killed after a load at a steady rate, and another one adopts the topic with `accept_loss`. The
lost records were accepted and never exported; the lost range also has the seqs that the dead node might have
used.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.clients.generator import Load, run
from loadtest.clients.traffic import NotMeasured, append_body, create_topics
from loadtest.store.nodes import DATA, UNLIMITED, StorePlace, ask, owner

NAME = "x"
RECORDS_A_REQUEST = 10
INTERVALS = 3.0


def lost_records(rate: int, interval_seconds: int) -> Callable[[Bench], Result]:
    """Kill a node that gets `rate` records/s, at a random time after three export intervals."""

    def measure(bench: Bench) -> Result:
        losses: list[float] = []
        notes: list[str] = []
        for _ in range(bench.rounds):
            lost, width = one_loss(bench, rate, interval_seconds)
            losses.append(lost / rate)
            notes.append(f"{lost:,} lost in a range of {width:,}")
        note = f"the most of {bench.rounds} kills: {', '.join(notes)}"
        return Result(line="", title="", unit="s of records", value=max(losses), note=note)

    return measure


def one_loss(bench: Bench, rate: int, interval_seconds: int) -> tuple[int, int]:
    """Return the number of lost records and the width of the reported range."""
    place = StorePlace(bench)
    settings = place.settings | UNLIMITED | {"TOPICS_EXPORT_INTERVAL_MS": str(interval_seconds * 1000)}
    with bench.subjects.server(1, **settings) as one, bench.subjects.server(1, **settings) as other:
        create_topics(one.port, bench.home, [NAME])
        seconds = interval_seconds * (INTERVALS + random.random())
        each = min(RECORDS_A_REQUEST, max(1, rate // 100))
        load = Load(
            path=f"/v0/topics/{NAME}",
            body=append_body(each, DATA),
            connections=4,
            seconds=seconds,
            rate=rate / each,
        )
        measured = run(one.port, load)
        one.kill()
        if fault := measured.fault():
            raise NotMeasured(fault)
        accepted = measured.sent * each
        row = owner(other.port, NAME)
        if row is None or not 0 < row["exported_to"] <= accepted:
            raise NotMeasured(f"{accepted} records were accepted, the catalog has {row}")
        ask(other.port, "POST", f"/v0/topics/{NAME}/adopt", b'{"accept_loss":true}')
        topic = ask(other.port, "GET", f"/v0/topics/{NAME}")
        return accepted - row["exported_to"], topic["head_seq"] - row["exported_to"]
