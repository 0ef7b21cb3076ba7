"""Batches go to their topics once, under any kill: a real server, and tasks and drivers that are
played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.errors import SourceError
from spark.sink.decision import ChunkMove, Decision, Decisions, SinkProducer
from spark.sink.publish import move_decided
from spark.sink.rows import RowError, SinkRows
from spark.sink.staging import StagedChunk
from spark.sink.write_options import WriteOptions, parse_write_options
from spark.sink.writers import MicroBatches, TaskReport
from spark.view.server_client import ServerClient, ServerRefusal
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer, name_on

SHARDS = 2
QUERY = "0b7c"
STAGING, DECIDED = f"spark-{QUERY}.staged", f"spark-{QUERY}.decided"


class Killed(BaseException):
    """As by SIGKILL: nothing that comes behind it is done."""


class MortalClient(ServerClient):
    """Is killed in front of its n-th request, or behind it."""

    left = 0
    is_done = False

    def ask(self, method: str, target: str, body: Any = None) -> bytes:
        if MortalClient.left == 1 and not MortalClient.is_done:
            raise Killed
        answer = super().ask(method, target, body)
        MortalClient.left -= 1
        if MortalClient.left <= 0:
            raise Killed
        return answer


class Driver(MicroBatches):
    """A driver whose requests may end at any of them."""

    def _client(self) -> ServerClient:
        return MortalClient(self._options.url, self._options.api_key, 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("sink"), shards=SHARDS) as server:
        yield server


@pytest.fixture
def client(server: WholeServer) -> TopicClient:
    return TopicClient(server.port)


def options_of(server: WholeServer, **given: str) -> WriteOptions:
    url = f"http://127.0.0.1:{server.port}"
    return parse_write_options({"url": url, "recordsPerRequest": "3", **given})


def task(options: WriteOptions, query: str, partition: int, rows: list[tuple[str, str]]) -> TaskReport:
    """What a task does with rows of topics and values."""
    topics, values = ([row[place] for row in rows] for place in (0, 1))
    batch = pa.record_batch({"topic": topics, "value": values})
    return MicroBatches(options)._stage(query, partition, iter([batch]))


def rows_of(client: TopicClient, topic: str) -> list[Any]:
    return [row["data"] for row in client.rows(topic)]


def attempt(rows: list[tuple[str, str]], tasks: int) -> list[list[tuple[str, str]]]:
    return [rows[number::tasks] for number in range(tasks)]


@pytest.mark.parametrize("is_done", [False, True], ids=["request lost", "answer lost"])
def test_a_driver_that_is_killed_at_any_request_leaves_no_double_and_no_hole(
    server: WholeServer, client: TopicClient, is_done: bool
) -> None:
    """Each time the batch is run again in other partitions and another order, and without some rows."""
    options = options_of(server)
    steps = 0
    for killed_at in range(1, 100):
        query = f"kill-{is_done}-{killed_at}"
        topics = [name_on(shard, SHARDS, f"to-{is_done}-{killed_at}-") for shard in range(SHARDS)]
        first = [(topics[n % 2], f"{n}") for n in range(14)]
        run(options, query, 0, [task(options, query, 0, first)])
        again = [(topics[n % 2], f"{n}") for n in range(100, 120)]
        reports = [task(options, query, n, rows) for n, rows in enumerate(attempt(again, 3))]
        MortalClient.left, MortalClient.is_done = killed_at, is_done
        try:
            Driver(options).commit(reports, 1)
        except Killed:
            pass
        else:
            steps = killed_at
        before = [rows_of(client, topic) for topic in topics]
        # Of the second attempt none may count when the first one was decided on, and all of it else.
        other = [(topic, f"{int(n) + 900}") for topic, n in again[:-5][::-1]]
        replayed = [task(options, query, n, rows) for n, rows in enumerate(attempt(other, 2))]
        run(options, query, 1, replayed)
        after = [rows_of(client, topic) for topic in topics]
        for shard in range(SHARDS):
            assert after[shard][: len(before[shard])] == before[shard]
            assert sorted(after[shard][:7]) == [n for n in range(14) if n % 2 == shard]
        batch = sorted(n for rows in after for n in rows[7:])
        assert batch in (list(range(100, 120)), sorted(int(n) for _, n in other)), killed_at
        # What comes next is taken.
        run(options, query, 2, [task(options, query, 0, [(topics[0], "-1")])])
        assert rows_of(client, topics[0]) == [*after[0], -1]
        if steps:
            break
    # One for each request that a commit makes, so that none was left out.
    assert 10 < steps < 99


def run(options: WriteOptions, query: str, batch: int, reports: list[TaskReport]) -> None:
    MortalClient.left = 10_000
    Driver(options).commit(reports, batch)


def test_one_producer_a_topic_is_all_that_stays_of_a_query(server: WholeServer, client: TopicClient) -> None:
    options = options_of(server, topic="counted")
    for batch in range(6):
        run(options, "long", batch, [task(options, "long", 0, [("", f"{n}") for n in range(10)])])
    assert rows_of(client, "counted") == [*range(10)] * 6
    assert client.state("spark-long.staged")["count"] == 0
    assert client.state("spark-long.decided")["count"] == 1
    with ServerClient(options.url, "") as sink_client:
        decision = Decisions(sink_client, "spark-long.decided").last()
    assert decision is not None
    assert decision.producers["counted"].next_seq == 6 * 4


def test_an_older_checkpoint_is_refused(server: WholeServer) -> None:
    options = options_of(server, topic="older")
    for batch in (4, 5):
        run(options, "old", batch, [task(options, "old", 0, [("", "1")])])
    with pytest.raises(SourceError, match="batch 4 was planned after batch 5 of this query was written"):
        run(options, "old", 4, [task(options, "old", 0, [("", "1")])])


def test_of_two_drivers_that_decide_at_a_time_one_does(server: WholeServer, client: TopicClient) -> None:
    options = options_of(server, topic="contested")
    with ServerClient(options.url, "") as sink_client:
        one, other = Decisions(sink_client, "spark-two.decided"), Decisions(sink_client, "spark-two.decided")
        assert (one.last(), other.last()) == (None, None)
        mine = Decision(
            0, [ChunkMove(StagedChunk("contested", 1, 2), 0)], {"contested": SinkProducer("a", 1)}
        )
        theirs = Decision(
            0, [ChunkMove(StagedChunk("contested", 3, 4), 0)], {"contested": SinkProducer("b", 1)}
        )
        assert one.store(mine) == mine
        assert other.store(theirs) == mine
        assert Decisions(sink_client, "spark-two.decided").last() == mine


def test_a_decision_of_any_size_is_kept_whole(server: WholeServer) -> None:
    moves = [ChunkMove(StagedChunk(f"topic-{n}", n, n), 0) for n in range(7000)]
    decision = Decision(3, moves, {move.chunk.topic: SinkProducer("p" * 40, 1) for move in moves})
    with ServerClient(options_of(server).url, "") as client:
        decisions = Decisions(client, "spark-large.decided")
        decisions.last()
        decisions.store(decision)
        assert Decisions(client, "spark-large.decided").last() == decision
        smaller = Decision(4, moves[:1], {})
        decisions.store(smaller)
        assert Decisions(client, "spark-large.decided").last() == smaller


def test_what_a_topic_lost_in_a_crash_is_sent_again_as_far_as_it_is_there(
    server: WholeServer, client: TopicClient
) -> None:
    """A topic that does not know the last number: of this batch it gets it again, else another producer."""
    options = options_of(server)
    values = [("lossy", f"{n}") for n in range(9)]
    report = task(options, "lossy", 0, values)
    ids = iter(("second", "third")).__next__

    def make() -> ServerClient:
        return ServerClient(options.url, "")

    with make() as sink_client:
        moves = [ChunkMove(chunk, number + 5) for number, chunk in enumerate(report.chunks)]
        decision = Decision(1, moves, {"lossy": SinkProducer("first", 8)})
        client.append("lossy", {"data": "old"}, producer={"id": "first", "seq": 2})
        decisions = Decisions(sink_client, "spark-lossy.decided")
        decisions.last()
        move_decided(make, "spark-lossy.staged", decision, decisions, ids)
        assert rows_of(client, "lossy") == ["old", *range(9)]
        kept = decisions.last()
        assert kept is not None
        assert kept.producers["lossy"] == SinkProducer("second", 3)


def test_deleted_staged_rows_fail_the_batch(server: WholeServer, client: TopicClient) -> None:
    options = options_of(server, topic="holed")
    report = task(options, "holed", 0, [("", f"{n}") for n in range(3)])
    client.call("spark-holed.staged", "delete", before_seq=3)
    with pytest.raises(SourceError, match="staged records after seq 0 for topic"):
        run(options, "holed", 0, [report])


WRONG = [
    ({"value": ['{"a":1}', "{'a':1}"]}, r"column value, row 1 of partition 7: must be JSON, .*to_json"),
    ({"value": ["1", '2},{"data":3']}, "column value, row 1 of partition 7: must be JSON"),
    (
        {"value": [b"1", b'"\xff"']},
        r"column value, row 1 of partition 7: must be JSON, .* \(not valid UTF-8\)",
    ),
    ({"value": ["1"], "topic": ["a b"]}, "column topic, row 0 of partition 7: must match .*, got 'a b'"),
    ({"value": ["1"], "topic": [None]}, "column topic, row 0 of partition 7: must match .*, got None"),
    (
        {"value": ["1", "2"], "key": ["a", "t" * 300]},
        "column key, row 1 of partition 7: .*at most 256 bytes, got 300",
    ),
    ({"value": ["1", '"%s"' % ("x" * (1 << 20))]}, "column value, row 1 of partition 7: .*record_too_large"),
    ({"value": ["1"], "meta": ["[1]"]}, "column headers, row 0 of partition 7: .*meta"),
    (
        {"value": ["1"], "headers": [[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]]},
        "column headers, row 0 of partition 7: header keys must be distinct and not null, got 'a'",
    ),
]


@pytest.mark.parametrize(("columns", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_a_row_that_cannot_be_a_record_is_named(
    server: WholeServer, columns: dict[str, list[Any]], sentence: str
) -> None:
    options = options_of(server, **({} if "topic" in columns else {"topic": "wrong"}))
    with pytest.raises(RowError, match=sentence):
        MicroBatches(options)._stage("wrong", 7, iter([pa.record_batch(columns)]))


def test_chunks_are_bounded_in_records_and_bytes(server: WholeServer) -> None:
    def sizes(values: list[str], topics: list[str], records: int) -> list[tuple[str, int]]:
        rows = SinkRows("", records, 0)
        batch = pa.record_batch({"value": values, "topic": topics})
        return [(chunk.topic, len(chunk.records)) for chunk in rows.chunks([batch])]

    assert sizes(["1"] * 5, ["a", "b", "a", "a", "b"], 2) == [("a", 2), ("b", 2), ("a", 1)]
    large = f'"{"x" * 400_000}"'
    assert sizes([large] * 4, ["a"] * 4, 1000) == [("a", 3), ("a", 1)]


def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        port = server.port
        with ServerClient(f"http://127.0.0.1:{port}", "", retry_s=0) as client:
            with pytest.raises(ServerRefusal, match="404 topic_not_found"):
                client.ask("GET", "topics/nowhere")
            worker = server.a_worker(0)
            worker.signal(9)
            assert worker.wait()
            with ServerClient(f"http://127.0.0.1:{port}", "") as patient:
                patient.ask("PUT", "topics/later", {"type": "log"})
            server.stop()
            with pytest.raises(SourceError, match=f"url: no response from http://127.0.0.1:{port}: "):
                client.ask("GET", "ready")
