"""The answers of the supervisor, over a real board and fake workers."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from router.control.control import METRICS_TYPE, ControlEndpoints, parse_list_query, wants_json
from router.control.metrics_table import ConnectionCounts
from router.control.topic_list import ListPage, ListQuery, cursor_after
from shared.contract.endpoints import Match, refuse_parameters, resolve
from shared.contract.errors import Refusal
from shared.ipc.board import Board, WorkerState
from shared.ipc.key_file import StoredKey
from shared.runtime.histogram import Histogram
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.output.prometheus_text import parse
from tests.harness.server.supervisor_parts import no_backup_points


class Workers:
    def __init__(self, board: Board) -> None:
        self.board = board
        self.is_draining = False
        self.were_ready: set[int] = set()

    def is_serving(self, shard: int) -> bool:
        return self.board.slot(shard).state is WorkerState.READY

    def was_ready(self, shard: int) -> bool:
        return shard in self.were_ready or self.is_serving(shard)

    def restart_count(self, shard: int) -> int:
        return 4 if shard == 0 else 0

    def become(self, *states: WorkerState) -> None:
        for shard, state in enumerate(states):
            self.board.slot(shard).state = state
            if state is WorkerState.READY:
                self.were_ready.add(shard)


class FakeServer:
    def __init__(self, board: Board) -> None:
        self.workers = Workers(board)
        self.clock = ManualClock()
        self.lists: list[tuple[int, str, str, int]] = []
        self.topics = ["t0"]
        """All of shard 0."""
        self.control = ControlEndpoints(
            self.workers,
            self.clock,
            "1.2.3",
            self.list_shard,
            self,
            no_backup_points(self.clock),
            lambda: ConnectionCounts(accepted=9),
            named_keys=lambda: self.named_keys,
        )
        self.named_keys: list[StoredKey] = []
        self.routers: list[str] = []
        """All of shard 0."""

    async def list_shard(
        self, shard: int, prefix: str, after: str, limit: int
    ) -> list[dict[str, Any]] | None:
        self.lists.append((shard, prefix, after, limit))
        assert self.workers.is_serving(shard)
        return [
            {"topic": name, "head_seq": 9, "earliest_seq": 1, "count": 9, "bytes": 9}
            for name in (self.topics if shard == 0 else [])[:limit]
        ]

    async def answer(
        self, operation: str, name: str, query: str, prefixes: Sequence[str]
    ) -> dict[str, object] | Refusal:
        return {"request": [operation, name, query, list(prefixes)]}

    async def page(
        self, query: ListQuery, prefixes: Sequence[str], source: str = "", dest: str = ""
    ) -> ListPage:
        routes = [{"router": name, "forwarded_total": 7} for name in self.routers][: query.page_size]
        return ListPage(list(routes), "more" if len(routes) < len(self.routers) else None, [])

    def __call__(self, operation: str, query: str = "", accept: str = "") -> tuple[int, Any]:
        status, content, fields = asyncio.run(self.control.answer(operation, "a>b", query, accept))
        self.suggests_retry = b"retry-after: 1\r\n" in fields
        assert self.suggests_retry <= (status == 503)
        if isinstance(content, dict):
            assert ("error" in content) != ("performance" in content)
        return status, content


@pytest.fixture
def ask() -> Iterator[FakeServer]:
    board = Board.create(2)
    yield FakeServer(board)
    board.close()
    os.close(board.fd)


def test_health_reports_version_and_uptime(ask: FakeServer) -> None:
    ask.clock.advance(1234)
    status, answer = ask("health")
    assert status == 200
    assert answer == {
        "status": "ok",
        "version": "1.2.3",
        "uptime_ms": 1234,
        "performance": {"server_total_ms": 0.0},
    }


def test_the_server_is_not_ready_until_every_shard_was_ready(ask: FakeServer) -> None:
    for states in (
        (WorkerState.GONE, WorkerState.GONE),
        (WorkerState.READY, WorkerState.STARTING),
        (WorkerState.GONE, WorkerState.REPLAYING),
        (WorkerState.REFUSED, WorkerState.REFUSED),
    ):
        ask.workers.become(*states)
        status, answer = ask("ready")
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert ask("ready", "allow_degraded=true")[0] == 503
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    assert ask("ready")[0] == 200


def test_ready_reports_the_progress_of_a_replay(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.REPLAYING)
    slot = ask.workers.board.slot(1)
    slot.replay_done, slot.replay_total = 1, 4
    detail = ask("ready")[1]["error"]["detail"]
    assert detail["replay_progress"] == 0.625
    assert [one["replay_progress"] for one in detail["shards"]] == [1.0, 0.25]


def test_ready_reports_each_shard(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    for shard in (0, 1):
        ask.workers.board.slot(shard).topics = 3 + shard
    status, answer = ask("ready")
    assert status == 200
    assert (answer["status"], answer["wal_replay_complete"], answer["topics"]) == ("ready", True, 7)
    assert [one["shard"] for one in answer["shards"]] == [0, 1]
    assert answer["shards"][1] == {
        "shard": 1,
        "state": "ready",
        "serving": True,
        "topics": 4,
        "replay_progress": 1.0,
    }


def test_a_missing_shard_is_not_ready_or_degraded_if_the_probe_allows_it(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    ask("ready")
    for state, text in (
        (WorkerState.GONE, "shard 1 is restarting"),
        (WorkerState.REPLAYING, "shard 1 is replaying its log"),
        (WorkerState.FAILED, "shard 1 is restarting after a disk failure; see the server's log"),
        (
            WorkerState.REFUSED,
            "shard 1 does not start because its data is damaged or cannot be used; see the server's log",
        ),
    ):
        ask.workers.become(WorkerState.READY, state)
        status, answer = ask("ready")
        assert (status, answer["error"]["code"], answer["error"]["message"]) == (503, "not_ready", text)
        # No retry helps against a shard that does not start.
        assert ask.suggests_retry == (state is not WorkerState.REFUSED)
        assert [one["serving"] for one in answer["error"]["detail"]["shards"]] == [True, False]
        status, answer = ask("ready", "allow_degraded=true")
        assert (status, answer["status"], answer["reason"]) == (200, "degraded", text)
    ask.workers.become(WorkerState.GONE, WorkerState.GONE)
    assert ask("ready", "allow_degraded=1")[0] == 200
    assert ask("ready", "allow_degraded=0")[0] == 503


def test_allow_degraded_must_be_a_boolean(ask: FakeServer) -> None:
    status, answer = ask("ready", "allow_degraded=maybe")
    assert (status, answer["error"]["message"]) == (
        400,
        'allow_degraded: must be true, false, 1 or 0, got "maybe"',
    )


def test_a_shard_that_refuses_to_start_does_not_delay_the_others(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.REFUSED)
    ask.workers.board.slot(1).reason = "/srv/topics/shards/01/wal is damaged"
    status, answer = ask("ready", "allow_degraded=true")
    assert (status, answer["status"]) == (200, "degraded")
    assert answer["shards"][1]["reason"] == "its data is damaged or cannot be used; see the server's log"
    assert "/srv" not in str(answer) + str(ask("ready"))


def test_no_reason_shows_a_path_to_a_client(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.STARTING)
    ask.workers.board.slot(1).reason = "cannot start: [Errno 13] Permission denied: '/opt/python'"
    _, answer = ask("ready")
    assert answer["error"]["message"] == "shard 1 is starting (cannot start)"
    assert answer["error"]["detail"]["shards"][1]["reason"] == "cannot start"
    ask.workers.become(WorkerState.READY, WorkerState.FAILED)
    ask.workers.board.slot(1).reason = "the disk failed: [Errno 5] EIO: '/srv/topics/wal'"
    detail = ask("ready")[1]["error"]["detail"]
    assert detail["shards"][1]["reason"] == "a disk failure; see the server's log"
    assert "/srv" not in str(ask("ready"))


def test_a_list_without_a_shard_suggests_a_retry_only_where_it_can_help(ask: FakeServer) -> None:
    for state in (WorkerState.GONE, WorkerState.REFUSED):
        ask.workers.become(WorkerState.READY, state)
        status, answer = ask("list_topics")
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert answer["error"]["message"] == (
            "shard 1 is unavailable; add ?partial=true for an incomplete list"
        )
        assert ask.suggests_retry == (state is WorkerState.GONE)


def test_a_server_that_shuts_down_is_healthy_and_not_ready(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    ask.workers.is_draining = True
    status, answer = ask("ready")
    assert (status, answer["error"]["code"]) == (503, "shutting_down")
    assert ask("health")[0] == 200


def test_metrics_are_well_formed_for_prometheus(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.GONE)
    ask.workers.board.slot(0).appends_total = (1 << 64) - 1
    status, text = ask("metrics")
    assert status == 200
    assert isinstance(text, str)
    assert text.endswith("\n")
    families = parse(text)
    assert all(name.startswith("topics_") for name in families)
    assert all(family.help.endswith(".") for family in families.values())
    assert 'topics_appends_total{shard="0"} 18446744073709551615' in text
    assert 'topics_worker_restarts_total{shard="0"} 4' in text
    assert "topics_front_connections_accepted_total 9" in text
    assert "\ntopics_ready 0\n" in text
    assert METRICS_TYPE.startswith("text/plain")


def histogram_of(*values: int) -> list[int]:
    one = Histogram()
    for value in values:
        one.counts[value.bit_length()] += 1
        one.total += value
    return one.words()


def test_histogram_buckets_are_cumulative(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    ask.workers.board.slot(1).append_us = histogram_of(3, 15, 16, 31, 1 << 26, 1 << 45)
    _, text = ask("metrics")
    series = dict(re.findall(r"^(topics_request_latency_us\S+) (\d+)$", text, re.MULTILINE))
    name, labels = "topics_request_latency_us", 'shard="1",operation="append"'
    assert [series[f'{name}_bucket{{{labels},le="{bound}"}}'] for bound in (16, 32, 64, 1 << 25, "+Inf")] == [
        "2",
        "4",
        "4",
        "4",
        "6",
    ]
    assert series[f"{name}_count{{{labels}}}"] == "6"
    assert series[f"{name}_sum{{{labels}}}"] == str(65 + (1 << 26) + (1 << 45))
    assert series[f'{name}_count{{shard="0",operation="append"}}'] == "0"


def test_a_histogram_as_json_is_a_summary(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    slot = ask.workers.board.slot(0)
    slot.read_us = histogram_of(*[100] * 98, 5000, 5000)
    slot.sync_us = histogram_of(700)
    shards = ask("metrics", accept="application/json")[1]["shards"]
    assert shards[0]["topics_request_latency_us"]["read"] == {
        "count": 100,
        "sum": 19800,
        "below_p50": 128,
        "below_p99": 8192,
        "below_p999": 8192,
    }
    assert shards[0]["topics_wal_fsync_latency_us"]["below_p50"] == 1024
    assert shards[1]["topics_wal_fsync_latency_us"] == {"count": 0, "sum": 0}


def test_the_query_limits_the_topics_with_series(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    ask.topics = [f"t{number}" for number in range(5)]
    _, text = ask("metrics", "topics=3&prefix=t")
    assert re.findall(r'^topics_topic_head_seq\{topic="(\w+)"\} 9$', text, re.MULTILINE) == ["t0", "t1", "t2"]
    assert "\ntopics_topic_metrics_truncated 1\n" in text
    assert ask.lists == [(0, "t", "", 4), (1, "t", "", 4)]
    answer = ask("metrics", "topics=5", "application/json")[1]
    assert [one["topic"] for one in answer["topics"]] == ask.topics
    assert answer["topics_topic_metrics_truncated"] == 0
    ask.lists.clear()
    assert "topics_topic_head_seq" not in ask("metrics", "topics=0")[1]
    assert ask.lists == []


def test_named_keys_are_counted_also_after_they_expired(ask: FakeServer) -> None:
    key = StoredKey(name="k", digest="0" * 64, scopes=("read",), created_ms=1)
    times = (0, ask.clock.now_ms() + 1000, ask.clock.now_ms() + 2000)
    ask.named_keys = [msgspec.structs.replace(key, expires_ms=time_ms) for time_ms in times]
    for expired in range(3):
        answer = ask("metrics", "", "application/json")[1]
        assert (answer["topics_named_keys"], answer["topics_named_keys_expired"]) == (3, expired)
        ask.clock.advance(1000)


def test_metrics_do_not_wait_for_a_missing_shard(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.REPLAYING)
    ask.topics = ["t0"]
    status, text = ask("metrics")
    assert status == 200
    assert 'topics_topic_bytes_live{topic="t0"} 9' in text
    assert ask.lists == [(0, "", "", 101)]


def test_an_invalid_number_of_topics_is_refused(ask: FakeServer) -> None:
    for query in ("topics=all", "routers=all"):
        status, answer = ask("metrics", query)
        assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_the_query_limits_the_routes_with_series(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    ask.workers.board.slot(1).routes = 3
    ask.routers = ["a>b", "r", "s"]
    _, text = ask("metrics", "routers=2")
    assert 'topics_routers{shard="1"} 3\n' in text
    series = re.findall(r'^topics_router_forwarded_total\{router="(.+)"\} 7$', text, re.MULTILINE)
    assert series == ["a>b", "r"]
    assert "\ntopics_router_metrics_truncated 1\n" in text
    assert parse(text)["topics_router_forwarded_total"].total() == 14
    answer = ask("metrics", "", "application/json")[1]
    assert answer["routers"] == [{"router": name, "forwarded_total": 7} for name in ask.routers]
    assert answer["topics_router_metrics_truncated"] == 0
    assert "topics_router_forwarded_total" not in ask("metrics", "routers=0")[1]


def test_route_operations_are_passed_to_the_route_endpoints(ask: FakeServer) -> None:
    for operation in ("list_routers", "router_state", "delete_router"):
        assert ask(operation, "x=y")[1]["request"] == [operation, "a>b", "x=y", []]


def test_topics_are_counted_by_durability_class(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    for shard in (0, 1):
        slot = ask.workers.board.slot(shard)
        slot.topics_ephemeral, slot.topics_memory, slot.topics_disk, slot.topics_fsync = shard, 2, 3, 4
    _, text = ask("metrics")
    assert parse(text)["topics_topics_by_class"].total() == 19
    assert 'topics_topics_by_class{shard="1",class="ephemeral"} 1\n' in text
    answer = ask("metrics", accept="application/json")[1]
    assert answer["topics_topics_by_class"] == {"ephemeral": 1, "memory": 4, "disk": 6, "fsync": 8}
    assert answer["shards"][0]["topics_topics_by_class"]["ephemeral"] == 0


def test_metrics_as_text_and_as_json_agree(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    for shard in (0, 1):
        slot = ask.workers.board.slot(shard)
        for number in range(5, 48):
            slot.words[number] = 100 * shard + number
        slot.append_us = slot.sync_us = histogram_of(5, 6, 70)
    families = parse(ask("metrics")[1])
    answer = ask("metrics", accept="application/json")[1]
    of_topics = {name for name in families if name.startswith("topics_topic_") and name not in answer}
    fields = ("head_seq", "earliest_seq", "records_live", "bytes_live")
    assert of_topics == {f"topics_topic_{name}" for name in fields}
    assert set(families) - of_topics == set(answer) - {"performance", "shards", "topics", "routers"}
    for name in set(families) - of_topics:
        for (line, labels), value in families[name].series.items():
            label = dict(labels)
            if line == name or line.endswith("_count"):
                series = answer["shards"][int(label.pop("shard"))][name] if "shard" in label else answer[name]
                for kind in label.values():
                    series = series[kind]
                assert value == (series if line == name else series["count"]), (line, labels)


def test_flags_and_shares_are_those_of_the_worst_shard(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    for shard in (0, 1):
        slot = ask.workers.board.slot(shard)
        slot.checkpoint_has_failed, slot.waiting_writes_max = 1, 5 + shard
        slot.append_us = histogram_of(5, 6, 70)
    answer = ask("metrics", accept="application/json")[1]
    assert (answer["topics_checkpoint_failed"], answer["topics_wal_queue_depth_peak"]) == (1, 6)
    assert answer["topics_request_latency_us"]["append"]["count"] == 6


def test_metrics_as_json_have_totals_and_shards(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    for shard in (0, 1):
        ask.workers.board.slot(shard).bytes_live = 10 + shard
    status, answer = ask("metrics", accept="application/json")
    assert status == 200
    assert (answer["topics_bytes_live"], answer["topics_ready"], answer["topics_recovery_progress"]) == (
        21,
        1,
        1,
    )
    assert [one["topics_bytes_live"] for one in answer["shards"]] == [10, 11]
    assert answer["topics_worker_restarts_total"] == 4


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/json", True),
        ("Application/JSON;q=1", True),
        ("text/plain, application/json", True),
        ("*/*", False),
    ],
)
def test_metrics_are_json_only_on_request(accept: str, expected: bool) -> None:
    assert wants_json(accept) == expected


def test_a_list_merges_all_shards(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    status, answer = ask("list_topics", f"prefix=t&page_size=7&cursor={cursor_after('sss')}&unknown=1")
    assert status == 200
    assert [one["topic"] for one in answer["topics"]] == ["t0"]
    assert not {"next_cursor", "missing_shards"} & set(answer)
    assert ask.lists == [(0, "t", "sss", 8), (1, "t", "sss", 8)]


def test_a_list_with_a_shard_down_is_refused_unless_partial(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.GONE)
    status, answer = ask("list_topics")
    assert (status, answer["error"]["detail"]["missing_shards"]) == (503, [1])
    status, answer = ask("list_topics", "partial=true")
    assert (status, answer["missing_shards"], len(answer["topics"])) == (200, [1], 1)


def test_an_empty_cursor_is_the_start(ask: FakeServer) -> None:
    ask.workers.become(WorkerState.READY, WorkerState.READY)
    assert ask("list_topics", "cursor=&page_size=3")[0] == 200
    assert ask.lists == [(0, "", "", 4), (1, "", "", 4)]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=ten", "page_size"),
        ("page_size=", "page_size"),
        ("page_size=1.5", "page_size"),
        ("page_size=%2B5", "page_size"),
        ("page_size=" + "9" * 5000, "page_size"),
        ("page_size=%D9%A1", "page_size"),
        ("partial=yes", "partial"),
        ("partial=", "partial"),
        ("cursor=b3JkZXJzIQ", "cursor"),
    ],
)
def test_an_invalid_query_is_refused_with_its_field(ask: FakeServer, query: str, field: str) -> None:
    status, answer = ask("list_topics", query)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert answer["error"]["message"].startswith(f"{field}: ")
    assert ask.lists == []


def test_a_query_that_is_not_utf8_is_refused() -> None:
    match = resolve("GET", "/v0/topics")
    assert isinstance(match, Match)
    assert refuse_parameters(match.endpoint, "prefix=%c3%a4") is None
    assert isinstance(refuse_parameters(match.endpoint, "prefix=%ff"), Refusal)


@pytest.mark.parametrize(
    ("query", "parsed"),
    [
        ("", ListQuery("", "", 100, False)),
        ("page_size=0", ListQuery("", "", 1, False)),
        ("page_size=-3", ListQuery("", "", 1, False)),
        ("page_size=1001&partial=1", ListQuery("", "", 1000, True)),
        ("prefix=a%2Fb+c&partial=false", ListQuery("a/b c", "", 100, False)),
    ],
)
def test_a_query_is_clamped_and_decoded_once(query: str, parsed: ListQuery) -> None:
    assert parse_list_query(query) == parsed


def test_an_unknown_operation_is_not_implemented(ask: FakeServer) -> None:
    status, answer = ask("browse")
    assert (status, answer["error"]["code"]) == (501, "not_implemented")
