"""The metrics of a server after requests."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.output.prometheus_text import parse
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

APPENDS, RECORDS, READS = 40, 3, 10


def test_the_gauge_of_a_worker_shows_its_blocked_disk(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, server.connect() as client:
        client.ask("PUT", "/v0/topics/f", {"durability": "fsync"})
        deadline = time.monotonic() + 20
        while not re.search(
            rb"^topics_pressure_disk\S* 0\.\d", client.ask("GET", "/v0/metrics").body, re.MULTILINE
        ):
            assert time.monotonic() < deadline
            for number in range(20):
                client.ask("POST", "/v0/topics/f", {"records": [{"data": number}]})
        assert server.stop() == 0


def test_every_metric_counts_after_requests(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, server.connect() as client:
        for number in range(APPENDS):
            client.ask_json("POST", f"/v0/topics/t{number % 4}", {"records": [{"data": number}] * RECORDS})
        for _ in range(READS):
            client.ask_json("POST", "/v0/topics/t1/diff", {"from_seq": 0})
        client.ask_json("GET", "/v0/topics/t1")

        def numbers(path: str = "/v0/metrics") -> dict[str, float]:
            """Return the sum of each metric over its labels."""
            sums: dict[str, float] = {}
            for family in parse(client.ask("GET", path).body.decode()).values():
                for (name, labels), value in family.series.items():
                    if "le" not in dict(labels):
                        sums[name] = sums.get(name, 0) + value
            return sums

        deadline = time.monotonic() + 20
        # Each worker publishes its counters with its own heartbeat.
        while (
            (values := numbers())["topics_reads_total"] < READS
            or values["topics_request_latency_us_count"] < APPENDS + READS + 1
            or values["topics_wal_unsynced_bytes"]
        ):
            assert time.monotonic() < deadline, values
            time.sleep(0.05)
        assert values["topics_appends_total"] == APPENDS
        assert values["topics_records_total"] == values["topics_records_live"] == APPENDS * RECORDS
        assert values["topics_reads_total"] == READS
        assert values["topics_bytes_live"] > APPENDS * RECORDS * 46
        assert values["topics_request_latency_us_count"] == APPENDS + READS + 1
        assert values["topics_request_latency_us_sum"] > 0
        assert values["topics_wal_batch_frames_count"] == values["topics_wal_batches_total"] > 0
        assert values["topics_wal_batch_frames_sum"] == values["topics_wal_frames_total"]
        assert values["topics_wal_fsync_latency_us_count"] == values["topics_wal_fsyncs_total"] > 0
        assert values["topics_topic_head_seq"] == APPENDS * RECORDS
        assert values["topics_topics_by_class"] == values["topics_topics"] == 4
        assert values["topics_front_connections_accepted_total"] >= 1
        assert values["topics_topic_metrics_truncated"] == 0
        assert numbers("/v0/metrics?topics=1")["topics_topic_metrics_truncated"] == 1
        assert server.stop() == 0


def test_gauges_show_what_waits_and_counters_what_was_uploaded(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server, server.connect() as client:
        queue, topic = server.topic_of(1, "jobs"), server.topic_of(0, "lines")
        client.ask_json("PUT", f"/v0/topics/{queue}", {"type": "queue"})
        upload = client.ask(
            "POST", f"/v0/topics/{topic}/records", b"1\n\n2\n3\n", content_type="application/x-ndjson"
        )
        assert upload.succeeded["count"] == 3

        def numbers() -> list[float]:
            answer = client.ask("GET", "/v0/metrics", None, "accept: application/json").json
            names = ("queue_waiting_claims", "topic_streams", "topic_searches")
            uploads = ("uploads_total", "upload_lines_total", "upload_records_total")
            return [answer[f"topics_{name}"] for name in (*names, *uploads)]

        with server.connect() as waiting:
            waiting.start("POST", f"/v0/topics/{queue}/claim", {"node": "w", "wait_ms": 30_000})
            with EventClient(server.port, f"/v0/stream?topics=none.*,{topic}") as events:
                events.begin()
                server.wait_for(lambda: numbers() == [1, 1, 1, 1, 4, 3], "the numbers")
        server.wait_for(lambda: numbers() == [0, 0, 0, 1, 4, 3], "the end of the waits")
        assert server.stop() == 0


def test_the_documentation_lists_every_metric_of_a_scrape_and_no_other(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api" / "health-and-metrics.md").read_text()
    cells = re.findall(r"^\| ([^|]*`topics_[^|]*)\|", page, re.MULTILINE)
    # Those of `topicsd compactor` are served by that command.
    listed = {name for cell in cells for name in re.findall(r"`(topics_(?!compactor_)\w+)`", cell)}
    (tmp_path / "objects").mkdir()
    store = f"--store-url=file://{tmp_path}/objects"
    with WholeServer(tmp_path, store) as server, server.connect() as client:
        client.ask_json("PUT", "/v0/topics/jobs", {"type": "queue"})
        for topic in ("jobs", "orders"):
            client.ask_json("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
        client.ask_json("PUT", "/v0/topics/orders/cursors/reader", {"after_seq": 0})
        client.ask_json("PUT", "/v0/routers/copies", {"source": "orders", "dest": "copies"})
        deadline = time.monotonic() + 20
        while (families := parse(client.ask("GET", "/v0/metrics").body.decode())).keys() != listed:
            assert time.monotonic() < deadline, families.keys() ^ listed
            time.sleep(0.05)
        assert server.stop() == 0
