from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.subjects import Subjects
from loadtest.ceilings import fanout_ceiling
from loadtest.ceilings.read_ceiling import COUNT, DATA, PAGE, HotTail
from loadtest.clients.generator import Load, run
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, append_body, ask
from loadtest.clients.watching import WatchedTopic, make_sessions, measure
from tests.unit.loadtest.scripted_server import answer, scripted
from topicsd.stream import sse_frames
from topicsd.stream.chunks import Chunk

pytestmark = pytest.mark.slow


def test_the_ceiling_sends_the_events_of_the_server() -> None:
    records = [b'{"$seq":%d,"$ts":1790000000000,"data":{"a":1}}' % seq for seq in (6, 7)]
    chunk = Chunk("orders", 3, 5, 7, 7, 1, 2, b",".join(records), None)
    assert fanout_ceiling.events("orders", records, 7) == sse_frames.events_with_ids(chunk)


def test_the_ceiling_of_fan_out_sends_each_record_to_all_watchers(tmp_path: Path) -> None:
    with Subjects(str(tmp_path)).ceiling("fanout_ceiling") as ceiling:
        topics = make_sessions(ceiling.port, ["x", "y"] * 3)
        took = measure(ceiling.port, topics, append_body(1, b'"marked"'), 0.2)
    assert [len(topic.streams) for topic in topics] == [3, 3]
    assert took.count >= 6
    (log,) = (tmp_path / "subject-1" / "data").iterdir()
    written = log.read_bytes().count(b'"marked"')
    # Deliveries of the warmup and those in transit at the end are not counted.
    assert took.count <= written * 3
    assert took.bytes > took.count * 100
    assert 0 < took.each_us[0] <= took.last_us[0] < 1e6


def test_a_refused_stream_is_reported() -> None:
    refusal = answer(status=b"429 Too Many Requests")
    with (
        scripted(lambda request: [refusal]) as server,
        pytest.raises(NotMeasured, match="a stream was answered with"),
    ):
        measure(server.port, [WatchedTopic("x", ["/v0/watch/x"])], b"{}", 0.1)


def gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("flags", [[], ["--durable"]])
def test_the_ceiling_of_writes_counts_up_and_writes_each_record(tmp_path: Path, flags: list[str]) -> None:
    with Subjects(str(tmp_path)).ceiling("write_ceiling", *flags) as ceiling:
        first = ask(ceiling.port, "/v0/topics/x", append_body(1))
        second = ask(ceiling.port, "/v0/topics/x", append_body(3, b'"marked"'))
        other = ask(ceiling.port, "/v0/topics/y", append_body(1))
        assert run(ceiling.port, Load(path="/v0/topics/x", body=append_body(2), requests=50)).fault() is None
    assert (first["seqs"], second["seqs"], other["seqs"]) == ([1], [2, 3, 4], [1])
    assert second["count"] == 3
    (log,) = (tmp_path / "subject-1" / "data").iterdir()
    assert log.read_bytes().count(b'"marked"') == 3


@pytest.mark.parametrize(("from_seq", "limit"), [(0, 1), (63, 1), (63, 2), (100, 300), (COUNT - 5, 1000)])
def test_the_slices_of_the_tail_are_the_records(from_seq: int, limit: int) -> None:
    last = min(from_seq + limit, COUNT)
    records = json.loads(b"[%b]" % b"".join(HotTail().slices(from_seq + 1, last)))
    assert [record["$seq"] for record in records] == list(range(from_seq + 1, last + 1))
    assert all(record["data"] == json.loads(DATA) for record in records)


def test_the_ceiling_of_reads_answers_with_slices_of_pages(tmp_path: Path) -> None:
    with Subjects(str(tmp_path)).ceiling("read_ceiling") as ceiling:
        answer = ask(ceiling.port, "/v0/topics/x/diff", b'{"from_seq":10,"limit":%d}' % (2 * PAGE))
        end = ask(ceiling.port, "/v0/topics/x/diff", b'{"from_seq":%d}' % COUNT)
    assert [record["$seq"] for record in answer["records"]] == list(range(11, 11 + 2 * PAGE))
    assert (answer["next_from_seq"], answer["caught_up"]) == (10 + 2 * PAGE, False)
    assert (end["records"], end["caught_up"]) == ([], True)


def twice(port: int) -> tuple[Any, Any]:
    """Two requests on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    answers = []
    for _ in range(2):
        connection.request("POST", "/v0/topics/x", append_body(1))
        answers.append(json.loads(connection.getresponse().read()))
    connection.close()
    return answers[0], answers[1]


@pytest.mark.parametrize("name", ["hand_over_ceiling", "link_ceiling"])
def test_two_processes_answer_and_end_together(tmp_path: Path, name: str) -> None:
    with Subjects(str(tmp_path)).ceiling(name) as ceiling:
        pids = ceiling.pids()
        first, second = twice(ceiling.port)
        load = Load(path="/v0/topics/x", body=append_body(1), connections=4, requests=100)
        assert run(ceiling.port, load).fault() is None
    assert first == second
    assert len(pids) == 2
    assert gone(pids)


def test_the_meters_include_child_processes(tmp_path: Path) -> None:
    with Subjects(str(tmp_path)).ceiling("link_ceiling") as ceiling:
        before = ceiling.cpu_seconds()
        run(ceiling.port, Load(path="/", body=b"{}", connections=8, seconds=0.3))
        assert ceiling.cpu_seconds() > before
        assert 5 << 20 < ceiling.pss_bytes() < 500 << 20


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.clients.processes.STOP_SECONDS", 0.1)
    stubborn = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork();"
        "open(sys.argv[1], 'w').write('7'); [signal.pause() for _ in iter(int, 1)]"
    )
    running = Running([sys.executable, "-c", stubborn, str(tmp_path / "port")], str(tmp_path), os.environ)
    pids = running.pids()
    running.stop()
    assert len(pids) == 2
    assert gone(pids[:1])
