from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtest.cluster.hammer.load_client import LoadClient
from loadtest.cluster.hammer.routing import owner_sets
from loadtest.cluster.hammer.tally import ClientReport, client_summary
from loadtest.cluster.hammer.worker import run
from loadtest.cluster.precreate import NotCreated, precreate, topic_name
from loadtest.cluster.run_folder import RunFolder, new_run, read_lines, write_json
from loadtest.cluster.scenario import Scenario, make_scenario
from loadtest.cluster.stack.cluster_stack import Stack
from loadtest.cluster.stack.tracked import Tracked
from tests.unit.loadtest.cluster.broker_double import BrokerDouble, SharedLog, broker_double

pytestmark = pytest.mark.slow

SHORT: dict[str, Any] = {
    "nodes": 2,
    "owners": 2,
    "partitions": 3,
    "producers": 3,
    "consumers": 2,
    "records_per_request": 5,
    "seconds": 0.3,
    "drain_seconds": 1.0,
    "max_wait_ms": 50,
    "request_timeout_seconds": 5.0,
    "sample_seconds": 0.1,
    "trace_share": 1.0,
}


class Hammered:
    """A client process of a test, and what it left."""

    def __init__(self, path: Path, log: SharedLog, **changes: Any) -> None:
        self.scenario: Scenario = make_scenario({**SHORT, **changes})
        self.folder: RunFolder = new_run(self.scenario, path)
        self.log = log
        self.nodes: list[BrokerDouble] = []

    def run(self, beside: Callable[[list[BrokerDouble]], None] | None = None) -> ClientReport:
        with ExitStack() as stack:
            self.nodes = [stack.enter_context(broker_double(self.log)) for _ in self.scenario.node_names]
            ports = dict(zip(self.scenario.node_names, (node.port for node in self.nodes), strict=True))
            scenario = self.scenario
            owners = owner_sets(
                scenario.topic_partitions, scenario.node_names, scenario.owners, scenario.seed
            )
            thread = threading.Thread(target=beside, args=(self.nodes,)) if beside else None
            if thread:
                thread.start()

            async def start() -> ClientReport:
                return await run(LoadClient(0, scenario, self.folder, ports, owners, "token"))

            report = asyncio.run(start())
            if thread:
                thread.join()
            return report


def test_every_record_is_read_once_and_counted_alike_on_both_sides(tmp_path: Path) -> None:
    hammered = Hammered(tmp_path, SharedLog())
    report = hammered.run()
    assert report.read_to_end
    assert report.verification["violations"] == []
    acked = report.verification["acked"]
    assert acked > 0
    assert report.verification["read"] == acked == report.tally.consume.records
    assert acked == sum(len(records) for records in hammered.log.records.values())
    assert acked == sum(node.counts["produce"]["records"] for node in hammered.nodes)
    assert all(node.counts["produce"]["records"] for node in hammered.nodes), "both owners were used"
    assert report.tally.end_to_end.count == acked
    samples = read_lines(hammered.folder.client_samples)
    assert sum(sample["produce"]["records"] for sample in samples) == acked
    assert len(samples) >= 2
    traces = read_lines(hammered.folder.traces)
    assert len(traces) >= acked / 5
    assert {trace["kind"] for trace in traces} == {"produce", "consume"}


@pytest.mark.parametrize(
    ("fault", "violation"),
    [
        (lambda log: setattr(log, "loses_record_at", 7), "acknowledged"),
        (lambda log: setattr(log, "repeats_offsets", True), "was given twice"),
    ],
    ids=["lost-record", "repeated-offset"],
)
def test_a_broker_that_breaks_its_promise_is_found(
    tmp_path: Path, fault: Callable[[SharedLog], None], violation: str
) -> None:
    log = SharedLog()
    fault(log)
    report = Hammered(tmp_path, log).run()
    assert any(violation in text for text in report.verification["violations"]), report.verification


def test_a_node_that_is_away_is_passed_over_and_used_again(tmp_path: Path) -> None:
    def take_away(nodes: list[BrokerDouble]) -> None:
        time.sleep(0.4)
        nodes[0].is_away = True
        time.sleep(0.4)
        nodes[0].is_away = False

    hammered = Hammered(tmp_path, SharedLog(), seconds=2.0)
    report = hammered.run(take_away)
    assert report.verification["violations"] == []
    assert report.read_to_end
    events = read_lines(hammered.folder.remap_events)
    assert [(event["event"], event["node"]) for event in events] == [("down", "node-0"), ("up", "node-0")]
    assert all(entry["owners"] == ["node-1"] for entry in events[0]["partitions"])
    assert {**report.tally.produce.errors, **report.tally.consume.errors}


def test_refused_records_are_errors_by_status_and_type(tmp_path: Path) -> None:
    log = SharedLog()
    log.refuses = True
    report = Hammered(tmp_path, log).run()
    assert report.tally.produce.records == 0
    assert set(report.tally.produce.errors) == {"503 BackPressureRejected"}
    assert report.tally.produce.latencies.count == 0
    assert read_lines(RunFolder(next(tmp_path.iterdir())).remap_events) == []


def test_records_of_an_earlier_run_are_not_those_of_this_one(tmp_path: Path) -> None:
    log = SharedLog()
    first = Hammered(tmp_path, log).run()
    second = Hammered(tmp_path, log).run()
    assert second.verification["violations"] == []
    assert second.verification["read"] == second.verification["acked"]
    total = first.verification["acked"] + second.verification["acked"]
    assert total == sum(len(records) for records in log.records.values())


def test_consumers_may_begin_when_producers_have_ended(tmp_path: Path) -> None:
    report = Hammered(tmp_path, SharedLog(), consume="catch_up").run()
    assert report.verification["violations"] == []
    assert report.verification["read"] == report.verification["acked"] > 0
    assert report.tally.consume.last_at > report.tally.produce.last_at


def test_a_run_without_producers_reads_what_is_there(tmp_path: Path) -> None:
    log = SharedLog()
    written = Hammered(tmp_path, log).run().verification["acked"]
    report = Hammered(tmp_path, log, producers=0, consume="catch_up").run()
    assert report.tally.consume.records == written
    assert report.read_to_end


def test_readers_at_others_use_nodes_that_are_never_written_to(tmp_path: Path) -> None:
    hammered = Hammered(tmp_path, SharedLog(), owners=1, readers="others", partitions=1)
    report = hammered.run()
    assert report.verification["violations"] == []
    assert report.verification["read"] == report.verification["acked"]
    writes = [node.counts["produce"]["records"] for node in hammered.nodes]
    reads = [node.counts["consume"]["records"] for node in hammered.nodes]
    assert sorted(map(bool, writes)) == [False, True]
    assert [bool(count) for count in reads] == [not count for count in writes]


def test_a_rate_is_kept(tmp_path: Path) -> None:
    report = Hammered(tmp_path, SharedLog(), seconds=1.0, records_per_second=300).run()
    assert 200 <= report.tally.produce.records <= 330


def test_a_run_without_consumers_is_not_checked_for_unread_records(tmp_path: Path) -> None:
    report = Hammered(tmp_path, SharedLog(), consumers=0).run()
    assert report.verification["acked"] == report.verification["acked_unread"] > 0
    assert report.verification["violations"] == []
    assert client_summary([report])["consume"]["records"] == 0


def tracked(node: BrokerDouble, name: str) -> Tracked:
    return Tracked(
        name=name,
        pid=1,
        start_time="1",
        port=node.port,
        url=f"http://127.0.0.1:{node.port}",
        log="",
        command=[],
    )


def test_partitions_are_created_at_all_nodes_in_turn(tmp_path: Path) -> None:
    folder = new_run(make_scenario({**SHORT, "topics": 2}), tmp_path)
    log = SharedLog()
    with broker_double(log) as first, broker_double(log) as second:
        nodes = [tracked(first, "node-0"), tracked(second, "node-1")]
        write_json(folder.stack, Stack(run=str(folder.path), processes=nodes))
        assert precreate(folder) == 6
        created = sorted(first.created + second.created)
        names = [topic_name(*partition).replace(":", "%3A") for partition in folder.scenario.topic_partitions]
        assert created == sorted(f"/v0/topics/{name}" for name in names)
        assert len(first.created) == len(second.created) == 3


def test_a_partition_that_is_refused_stops_the_run(tmp_path: Path) -> None:
    folder = new_run(make_scenario({**SHORT, "nodes": 1, "owners": 1}), tmp_path)
    with broker_double(SharedLog()) as node:
        node.put_status = 409
        write_json(folder.stack, Stack(run=str(folder.path), processes=[tracked(node, "node-0")]))
        with pytest.raises(NotCreated, match=r"load-0.* at node-0: 409"):
            precreate(folder)
