"""Benchmark lines of uploads: lines of JSON beside the same records in batches."""

from __future__ import annotations

import statistics

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench, medians
from loadtest.clients.traffic import NotMeasured, append_body, ask, create_topics, lines_body

RECORDS = 100
LINES_TYPE = "Content-Type: application/x-ndjson"


def lines_of_json(bench: Bench) -> Result:
    """Measure records sent as lines, and as batches of as many records, in one server."""
    body = append_body(RECORDS)
    lines = lines_body(RECORDS)
    with bench.subjects.server() as server:
        create_topics(server.port, bench.home, ["x"])
        if ask(server.port, "/v0/topics/x", body)["count"] != RECORDS:
            raise NotMeasured(f"{RECORDS} records were not written")
        uploads = bench.load(path="/v0/topics/x/records", body=lines, connections=32, headers=(LINES_TYPE,))
        batches = bench.load(path="/v0/topics/x", body=body, connections=32)
        rounds = bench.in_turn((server, uploads), (server, batches))
    value, json, ratio = medians(rounds, lambda reading: reading.per_second)
    return Result(
        line="",
        title="",
        unit="records/s",
        value=value * RECORDS,
        ceiling=json * RECORDS,
        ratio=ratio,
        cpu_ratio=1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9),
        p50_us=statistics.median(reading.p50_us for reading in rounds[0]),
        p99_us=statistics.median(reading.p99_us for reading in rounds[0]),
    )
