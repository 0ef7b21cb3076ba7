"""Topics that are not where the rule places them: every connection, reader and tool finds them."""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shared.ipc.board import PLACEMENT_VERSION
from shared.ipc.placement import Placement, encode_placement
from spark.source.read_options import parse_options
from spark.view.directory_view import DirectoryView
from spark.view.server_view import ServerView
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import RawClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WORKER_SPEC, WholeServer, name_on

pytestmark = pytest.mark.slow

SHARDS = 2
ORDERS, OTHER = name_on(0, SHARDS, "orders"), name_on(1, SHARDS, "other")
# More than the size from which a body is in memory that two workers share.
LARGE_COUNT = 3000


class Load(LiveThreads):
    """Keep the owner of a topic in all caches, on connections that are opened again and again."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__()
        self._port = port
        self._topic = topic
        self.statuses: set[int] = set()
        self._threads += [threading.Thread(target=self._run) for _ in range(3)]

    def _run(self) -> None:
        while not self._ending.is_set():
            for kind in (RawClient, H2Client):
                with kind(self._port) as client:
                    for _ in range(20):
                        self.statuses.add(client.ask("GET", f"/v0/topics/{self._topic}").status)
                        self.statuses.add(client.ask("POST", f"/v0/topics/{OTHER}", one(1)).status)


def one(data: Any) -> dict[str, Any]:
    return {"records": [{"data": data}]}


def write(folder: Path, placement: Placement) -> None:
    path = folder / "data/PLACEMENT.json"
    path.with_suffix(".new").write_bytes(encode_placement(placement))
    path.with_suffix(".new").rename(path)


def publish(server: WholeServer, placement: Placement) -> None:
    """Replace the placement of a running server, as its supervisor does."""
    write(server.folder, placement)
    pid = server.worker_pids()[0]
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    spec = json.loads(next(line for line in lines if line.startswith(WORKER_SPEC)).removeprefix(WORKER_SPEC))
    fd = os.open(f"/proc/{pid}/fd/{spec['board_fd']}", os.O_RDWR)
    with mmap.mmap(fd, 0) as board, memoryview(board) as view, view.cast("Q") as words:
        words[PLACEMENT_VERSION] = placement.version
    os.close(fd)


def shard_on_disk(server: WholeServer, topic: str) -> int:
    """Return the only shard that has the topic."""
    holders = [
        shard
        for shard in range(server.shards)
        if run_here("inspect", server.folder / "data", "--shard", shard, "--topic", topic).code == 0
    ]
    assert len(holders) == 1, holders
    return holders[0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WholeServer]:
    with WholeServer(tmp_path, "--fronts=2", shards=SHARDS) as running:
        assert running.stop() == 0
        write(tmp_path, Placement(SHARDS).changed({ORDERS: 1}))
        running.start()
        yield running


def test_a_topic_with_an_exception_is_served_on_every_connection(server: WholeServer) -> None:
    target = f"/v0/topics/{ORDERS}"
    server.ask_json("POST", target, one("fresh"))
    with ExitStack() as stack:
        for name in (ORDERS, OTHER):
            first, second = (stack.enter_context(kind(server.port)) for kind in (RawClient, H2Client))
            for client in (first, second):
                client.ask("GET", f"/v0/topics/{name}?touch=false")
                client.ask_json("POST", target, one("kept"))
        socket = stack.enter_context(WsClient(server.port))
        socket.ask("publish", topic=ORDERS, **one("socket"))
        wid = server.ask_json("POST", "/v0/watch", {"topics": {ORDERS: {"from_seq": 0}}})["wid"]
        events = stack.enter_context(EventClient(server.port, f"/v0/watch/{wid}")).begin()
        assert events.records(6) == [(ORDERS, seq) for seq in range(1, 7)]
    state = server.ask_json("GET", target)
    assert (state["head_seq"], state["shard"]) == (6, 1)
    assert [entry["topic"] for entry in server.ask_json("GET", "/v0/topics")["topics"]] == [ORDERS]


def test_a_route_is_kept_where_its_destination_is(server: WholeServer) -> None:
    server.ask_json("PUT", "/v0/routers/copy", {"source": OTHER, "dest": ORDERS})
    server.ask_json("POST", f"/v0/topics/{OTHER}", one("routed"))

    def is_copied() -> bool:
        return bool(server.ask_json("GET", f"/v0/topics/{ORDERS}")["head_seq"])

    server.wait_for(is_copied, "the record is copied")
    assert server.ask_json("GET", f"/v0/topics/{ORDERS}")["shard"] == 1
    server.ask_json("DELETE", "/v0/routers/copy")


def test_tools_and_spark_find_a_topic_with_an_exception(server: WholeServer) -> None:
    server.ask_json("POST", f"/v0/topics/{ORDERS}", one("x"))
    with ServerView(
        parse_options({"url": f"http://127.0.0.1:{server.port}", "subscribe": ORDERS}, False)
    ) as view:
        assert (view.topics[ORDERS].shard, view.topics[ORDERS].head) == (1, 1)
    assert server.stop() == 0
    data = server.folder / "data"
    with DirectoryView(parse_options({"path": str(data), "subscribe": ORDERS}, False)) as files:
        assert (files.topics[ORDERS].shard, files.topics[ORDERS].head) == (1, 1)
    report = run_here("inspect", data, "--json").json
    assert (report["placement_version"], report["exceptions"]) == (1, {ORDERS: 1})
    assert f'topic "{ORDERS}" has shard 1' in run_here("inspect", data).out
    assert run_here("inspect", data, "--topic", ORDERS, "--json").json["shard"] == 1
    assert "it belongs to shard" not in run_here("verify", data).out
    assert run_here("doctor", data).code == 0


def test_a_change_under_load_is_followed_by_every_process(server: WholeServer) -> None:
    """No topic is moved here: `new` is created while the placement changes."""
    new = name_on(0, SHARDS, "new")
    target = f"/v0/topics/{new}"
    server.ask_json("POST", f"/v0/topics/{OTHER}", one(0))
    with ExitStack() as stack:
        clients = [
            stack.enter_context(kind(server.port)) for kind in (RawClient, H2Client) for _ in range(SHARDS)
        ]
        for at, client in enumerate(clients):
            client.ask("GET", f"/v0/topics/{(ORDERS, OTHER)[at % 2]}")
            assert client.ask("GET", target).status == 404
        socket = stack.enter_context(WsClient(server.port))
        load = stack.enter_context(Load(server.port, new))
        # The rest of this body arrives after the change: its connection knows the former owner.
        body = json.dumps({"records": [{"data": "x" * 1000}] * LARGE_COUNT}).encode()
        large = stack.enter_context(RawClient(server.port))
        head = f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        large.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:100])
        publish(server, Placement(SHARDS).changed({ORDERS: 1}).changed({new: 1}))
        for client in clients:
            client.ask_json("POST", target, one(0))
        socket.ask("publish", topic=new, **one(0))
        large.send(body[100:])
        assert large.read_answer().status in (200, 201)
    assert load.statuses <= {200, 201, 404}
    assert 200 in load.statuses
    state = server.ask_json("GET", target)
    assert (state["shard"], state["head_seq"]) == (1, len(clients) + 1 + LARGE_COUNT)
    assert server.stop() == 0
    assert shard_on_disk(server, new) == 1


def test_a_damaged_file_stops_the_start_and_is_rebuilt(server: WholeServer) -> None:
    server.ask_json("POST", f"/v0/topics/{ORDERS}", one("x"))
    assert server.stop() == 0
    data = server.folder / "data"
    path = data / "PLACEMENT.json"
    path.write_bytes(path.read_bytes().replace(b"orders", b"ordres"))
    for command in ("serve", "verify", "inspect"):
        arguments = ("--data-dir", data) if command == "serve" else (data,)
        ran = run_here(command, *arguments)
        assert ran.code != 0
        assert "PLACEMENT.json: " in ran.err
        assert "topicsd doctor" in ran.err
    report = run_here("doctor", data, "--json").json
    assert (report["is_fine"], report["placement"]["stops"]) == (False, True)
    assert run_here("doctor", data, "--repair", "--apply").code == 0
    assert (data / "PLACEMENT.json.damaged").exists()
    server.start()
    assert server.ask_json("GET", f"/v0/topics/{ORDERS}")["head_seq"] == 1


def test_a_lost_file_is_rebuilt_from_where_the_topics_are(server: WholeServer) -> None:
    server.ask_json("POST", f"/v0/topics/{ORDERS}", one("x"))
    server.ask_json("POST", f"/v0/topics/{OTHER}", one("x"))
    assert server.stop() == 0
    data = server.folder / "data"
    (data / "PLACEMENT.json").unlink()
    report = run_here("doctor", data, "--repair")
    assert report.code != 0
    assert f'1 topic in another shard than it gives them: "{ORDERS}"' in " ".join(report.out.split())
    assert not (data / "PLACEMENT.json").exists()
    assert run_here("doctor", data, "--repair", "--apply").code == 0
    assert run_here("inspect", data, "--json").json["exceptions"] == {ORDERS: 1}
    server.start()
    assert server.ask_json("GET", f"/v0/topics/{ORDERS}")["head_seq"] == 1


# -- moving a topic ----------------------------------------------------------------------------------------


def test_a_topic_moves_with_everything_and_comes_back(server: WholeServer) -> None:
    target = f"/v0/topics/{OTHER}"
    for number in range(20):
        server.ask_json("POST", target, one(number))
    server.ask_json("POST", f"{target}/delete", {"seqs": [3]})
    server.ask_json("PUT", f"{target}/cursors/c", {"from_seq": 7})
    before = server.ask_json("GET", f"{target}?touch=false")
    for shard in (0, 0, 1, 0):
        moved = server.ask_json("POST", f"{target}/move", {"shard": shard})
        assert (moved["shard"], moved["moved"]) == (shard, shard != before["shard"])
        state = server.ask_json("GET", f"{target}?touch=false")
        assert state["shard"] == shard
        same = ("head_seq", "earliest_seq", "count", "bytes", "epoch", "config")
        assert {name: state[name] for name in same} == {name: before[name] for name in same}
        assert server.ask_json("GET", f"{target}/cursors/c")["from_seq"] == 7
        before = server.ask_json("POST", target, one("more")) and server.ask_json("GET", target)
    assert server.stop() == 0
    assert shard_on_disk(server, OTHER) == 0
    assert run_here("doctor", server.folder / "data").code == 0


class MovedTopic(LiveThreads):
    """Writers, with and without a producer, and readers of a topic that moves."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__()
        self._port = port
        self._topic = topic
        self.seqs: list[int] = []
        self.errors: list[object] = []
        self.read: list[int] = []
        kinds = (RawClient, H2Client)
        self._threads += [threading.Thread(target=self._write, args=(kind,)) for kind in kinds * 2]
        self._threads += [threading.Thread(target=self._poll, args=(kind,)) for kind in kinds]

    def _write(self, kind: type[RawClient | H2Client]) -> None:
        with kind(self._port) as client:
            number = 0
            while not self._ending.is_set():
                number += 1
                answer = client.ask("POST", f"/v0/topics/{self._topic}", one(number))
                if answer.status == 200:
                    self.seqs.append(answer.json["first_seq"])
                else:
                    self.errors.append((answer.status, answer.body))
                if answer.closes:
                    client.close()
                    client.__init__(self._port)  # type: ignore[misc]

    def _poll(self, kind: type[RawClient | H2Client]) -> None:
        seq = 0
        with kind(self._port) as client:
            while not self._ending.is_set():
                body = {"from_seq": seq, "wait_ms": 200, "limit": 100}
                answer = client.ask("POST", f"/v0/topics/{self._topic}/diff", body)
                if answer.status != 200:
                    self.errors.append((answer.status, answer.body))
                    continue
                records = answer.json["records"]
                if [record["$seq"] for record in records] != list(range(seq + 1, seq + 1 + len(records))):
                    self.errors.append(records)
                seq += len(records)
                if answer.closes:
                    client.close()
                    client.__init__(self._port)  # type: ignore[misc]


def test_a_topic_moves_under_load_and_no_client_notices(server: WholeServer) -> None:
    server.ask_json("PUT", f"/v0/topics/{OTHER}", {"cap_records": 0})
    wid = server.ask_json("POST", "/v0/watch", {"topics": {OTHER: {"from_seq": 0}}})["wid"]
    frozen = []
    with ExitStack() as stack:
        events = stack.enter_context(EventClient(server.port, f"/v0/watch/{wid}")).begin()
        with MovedTopic(server.port, OTHER) as load:
            for number in range(12):
                moved = server.ask_json("POST", f"/v0/topics/{OTHER}/move", {"shard": number % 2})
                frozen.append(moved["frozen_ms"])
                assert moved["shard"] == number % 2
        head = server.ask_json("GET", f"/v0/topics/{OTHER}")["head_seq"]
        assert load.errors == []
        assert sorted(load.seqs) == list(range(1, head + 1))
        assert events.records(head) == [(OTHER, seq) for seq in range(1, head + 1)]
    assert server.stop() == 0
    assert shard_on_disk(server, OTHER) == 1
    assert run_here("doctor", server.folder / "data").code == 0
