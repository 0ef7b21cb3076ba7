"""Benchmark line of a filter: reads of one record in a hundred, over reads of the same records alone."""

from __future__ import annotations

import os

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench, medians
from loadtest.clients.generator import Load
from loadtest.clients.traffic import ORDER, NotMeasured, ask, create_topics, run_checked, targets

SELECTED = 2000
EACH = 100
LIMIT = 100
POSITIONS = 18


def filtered(bench: Bench) -> Result:
    with bench.subjects.server() as server:
        create_topics(server.port, bench.home, ["all", "alone"])
        selected = b'{"data":%b,"tag":"wanted"}' % ORDER
        others = [b'{"data":%b,"tag":"other.%d"}' % (ORDER, number) for number in range(EACH - 1)]
        middle = EACH // 2
        mixed = [*others[:middle], selected, *others[middle:]]
        for name, records in (("all", mixed), ("alone", [selected])):
            body = b'{"records":[%b]}' % b",".join(records)
            run_checked(server.port, Load(path=f"/v0/topics/{name}", body=body, requests=SELECTED))
        answer = ask(server.port, "/v0/topics/all/diff", b'{"match":"wanted","limit":%d}' % LIMIT)
        if (count := len(answer["records"])) != LIMIT:
            raise NotMeasured(f"a diff of {LIMIT} returned {count} records")
        loads = [
            bench.load(targets=_targets(bench, "all", EACH, b',"match":"wanted"'), connections=32),
            bench.load(targets=_targets(bench, "alone", 1, b""), connections=32),
        ]
        rounds = bench.in_turn((server, loads[0]), (server, loads[1]))
    value, alone, ratio = medians(rounds, lambda reading: reading.cpu_us)
    note = f"{value:.0f} us of CPU for {LIMIT} records, {alone:.0f} us alone"
    return Result(line="", title="", unit="x the CPU", value=ratio, note=note)


def _targets(bench: Bench, name: str, step: int, match: bytes) -> str:
    """Write reads of the same records, at their positions in the topic."""
    bodies = [
        b'{"after_seq":%d,"limit":%d%b}' % (number * LIMIT * step, LIMIT, match)
        for number in range(POSITIONS)
    ]
    return targets(os.path.join(bench.home, name), [(f"/v0/topics/{name}/diff", body) for body in bodies])
