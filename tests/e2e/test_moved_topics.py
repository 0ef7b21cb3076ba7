"""Topics that move between the shards of a running server: what their clients and routes see of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.source.read_options import parse_options
from spark.view.directory_view import DirectoryView
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.raw_client import RawClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.output.command_run import run_here
from tests.harness.output.prometheus_text import parse
from tests.harness.server.whole_server import WholeServer, name_on

pytestmark = pytest.mark.slow

SHARDS = 2
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("moved"), shards=SHARDS) as running:
        yield running


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    return server.ask_json(method, f"/v0/topics/{path}", body)


def move(server: WholeServer, name: str) -> int:
    """Move a topic to the other shard, and return that."""
    shard = ask(server, "GET", f"{name}?touch=false")["shard"]
    moved = ask(server, "POST", f"{name}/move", {"shard": 1 - shard})
    assert moved["moved"]
    assert ask(server, "GET", f"{name}?touch=false")["shard"] == 1 - shard
    return 1 - int(shard)


def append(server: WholeServer, name: str, *data: Any, **envelope: Any) -> Any:
    return ask(server, "POST", name, {"records": [{"data": one} for one in data], **envelope})


def data_of(server: WholeServer, name: str) -> list[Any]:
    """Return the data of all records; a topic that does not exist has none."""
    answer = server.ask("POST", f"/v0/topics/{name}/diff", {"limit": 1000})
    assert answer.status in (200, 404), answer
    return [one["data"] for one in answer.json.get("records", ())]


def claim(server: WholeServer, name: str, count: int, node: str = "w") -> list[dict[str, Any]]:
    body = {"node": node, "max": count, "lease_ms": HOUR_MS}
    claimed: list[dict[str, Any]] = ask(server, "POST", f"{name}/claim", body)["claimed"]
    return claimed


@pytest.mark.parametrize("leases_durable", [False, True])
def test_leases_and_delays_of_a_queue_move_with_it(server: WholeServer, leases_durable: bool) -> None:
    name = server.topic_of(0, f"queue-{leases_durable}")
    ask(server, "PUT", name, {"type": "queue", "leases_durable": leases_durable})
    append(server, name, *range(1, 7))
    append(server, name, "later", delay_ms=HOUR_MS)
    append(server, name, "soon", delay_ms=700)
    leases = {job["$seq"]: job["lease_id"] for job in claim(server, name, 4)}
    ask(server, "POST", f"{name}/nack", {"node": "w", "seqs": [4], "delay_ms": HOUR_MS})
    before = ask(server, "GET", name)["queue"]
    for number in (1, 2):
        move(server, name)
        lease: dict[str, Any] = {"node": "w", "seqs": [number], "lease_ids": [leases[number]]}
        assert ask(server, "POST", f"{name}/ack", lease)["acked"] == 1
        lease = {"node": "w", "seqs": [3], "lease_ids": [leases[3]], "lease_ms": HOUR_MS}
        assert ask(server, "POST", f"{name}/extend", lease)["extended"] == 1
        other = ask(server, "POST", f"{name}/ack", {"node": "v", "seqs": [3]})
        assert other["skipped_reasons"] == {"3": "other_node"}
        state = ask(server, "GET", name)["queue"]
        assert state["in_flight"] == before["in_flight"] - number
    assert [job["$seq"] for job in claim(server, name, 9, "v") if job["$seq"] != 8] == [5, 6]
    server.wait_for(lambda: 8 in [*map(seq_of, claim(server, name, 9, "v")), held_by(server, name, 8)], "8")
    assert ask(server, "GET", f"{name}/explain?seq=7")["state"] == "delayed"
    assert ask(server, "GET", f"{name}/explain?seq=4")["state"] == "delayed"


def seq_of(job: dict[str, Any]) -> Any:
    return job["$seq"]


def held_by(server: WholeServer, name: str, seq: int) -> int:
    return seq if ask(server, "GET", f"{name}/explain?seq={seq}")["state"] == "leased" else 0


def test_the_order_of_tags_survives_moves(server: WholeServer) -> None:
    name = server.topic_of(1, "ordered")
    ask(server, "PUT", name, {"type": "queue", "order_by": "tag"})
    for number in range(6):
        ask(server, "POST", name, {"records": [{"data": number, "tag": "ab"[number % 2]}]})
    assert [job["$seq"] for job in claim(server, name, 9)] == [1, 2]
    move(server, name)
    assert claim(server, name, 9) == []
    assert ask(server, "POST", f"{name}/ack", {"node": "w", "seqs": [2]})["acked"] == 1
    assert [job["$seq"] for job in claim(server, name, 9)] == [4]


def test_a_stream_of_jobs_ends_for_a_move_and_its_client_continues(server: WholeServer) -> None:
    name = server.topic_of(0, "streamed")
    ask(server, "PUT", name, {"type": "queue"})
    append(server, name, 1, 2)
    path = f"/v0/topics/{name}/work?node=w&max=1"
    with EventClient(server.port, path).begin() as client:
        assert client.next().id == "1"
        ask(server, "POST", f"{name}/ack", {"node": "w", "seqs": [1]})
        assert client.next().id == "2"
        move(server, name)
        assert client.rest() == []
    with EventClient(server.port, path).begin() as client:
        # Its job of the former stream is still leased to it.
        assert ask(server, "POST", f"{name}/ack", {"node": "w", "seqs": [2]})["acked"] == 1
        append(server, name, 3)
        assert client.next().id == "3"


def test_claims_that_share_a_window_are_answered_by_the_new_owner(server: WholeServer) -> None:
    name = server.topic_of(0, "jitter")
    ask(server, "PUT", name, {"type": "queue", "claim_jitter_ms": 400})
    append(server, name, *range(6))
    claimed: list[int] = []
    statuses: list[int] = []

    def work(node: str) -> None:
        with RawClient(server.port) as client:
            body = {"node": node, "max": 1}
            for _ in range(3):
                answer = client.ask("POST", f"/v0/topics/{name}/claim", body)
                statuses.append(answer.status)
                claimed.extend(job["$seq"] for job in answer.json["claimed"])

    threads = [threading.Thread(target=work, args=(node,)) for node in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(3):
        move(server, name)
    for thread in threads:
        thread.join()
    assert statuses == [200] * 6
    assert sorted(claimed) == [1, 2, 3, 4, 5, 6]


def test_dead_letters_find_their_topic_and_return_after_moves(server: WholeServer) -> None:
    queue, dead = server.topic_of(0, "failing"), server.topic_of(0, "dead")
    ask(server, "PUT", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": dead})

    def fail(seq: int, data: str) -> None:
        append(server, queue, data)
        assert [job["$seq"] for job in claim(server, queue, 1)] == [seq]
        ask(server, "POST", f"{queue}/nack", {"node": "w", "seqs": [seq]})
        assert claim(server, queue, 1) == []
        server.wait_for(lambda: len(data_of(server, dead)) == seq, "the dead letter is moved")

    fail(1, "first")
    move(server, dead)
    fail(2, "second")
    move(server, queue)
    fail(3, "third")
    assert data_of(server, dead) == ["first", "second", "third"]
    assert ask(server, "GET", queue)["queue"]["dead_lettered"] == 3
    move(server, dead)
    assert ask(server, "POST", f"{dead}/redrive", {})["redriven"] == 3
    assert [job["data"] for job in claim(server, queue, 9)] == ["first", "second", "third"]
    assert data_of(server, dead) == []


def test_parked_jobs_wait_for_their_dead_letter_topic_across_moves(server: WholeServer) -> None:
    name = server.topic_of(1, "parked")
    ask(server, "PUT", name, {"type": "queue", "max_deliveries": 1})
    append(server, name, "bad")
    claim(server, name, 1)
    ask(server, "POST", f"{name}/nack", {"node": "w", "seqs": [1]})
    assert claim(server, name, 1) == []
    assert ask(server, "GET", f"{name}/explain?seq=1")["state"] == "parked"
    move(server, name)
    assert ask(server, "GET", f"{name}/explain?seq=1")["state"] == "parked"
    ask(server, "PUT", name, {"dead_letter": f"{name}-dead"})
    server.wait_for(lambda: data_of(server, f"{name}-dead") == ["bad"], "the dead letter is moved")


def test_routes_continue_when_either_end_moves(server: WholeServer) -> None:
    source, middle, last = (server.topic_of(0, prefix) for prefix in ("source", "middle", "last"))
    for name, ends in (("first", (source, middle)), ("second", (middle, last))):
        server.ask_json("PUT", f"/v0/routers/{name}", {"source": ends[0], "dest": ends[1]})
    sent: list[int] = []

    def send(count: int = 5) -> None:
        for _ in range(count):
            sent.append(len(sent))
            append(server, source, sent[-1])

    send()
    for name in (middle, source, last, middle, source, last):
        send(3)
        move(server, name)
        send(2)
        server.wait_for(lambda: len(data_of(server, last)) >= len(sent), "all are copied")
        assert data_of(server, last) == sent
    assert len(server.ask_json("GET", "/v0/routers")["routers"]) == 2
    ask(server, "DELETE", middle)
    assert server.ask_json("GET", "/v0/routers")["routers"] == []


def test_web_sockets_follow_and_publish(server: WholeServer) -> None:
    name = server.topic_of(0, "socket")
    append(server, name, 1)
    with WsClient(server.port) as client, WsClient(server.port) as writer:
        client.ask("subscribe", topic=name, from_seq=0)
        seen: list[int] = []
        for number in range(2, 12):
            if number % 3 == 0:
                move(server, name)
            writer.ask("publish", topic=name, records=[{"data": number}])
        while len(seen) < 11:
            message = client.read()
            seen += [one["data"] for one in message.get("records", ())]
        assert seen == list(range(1, 12))


def test_keys_and_producers_are_known_to_the_new_owner(server: WholeServer) -> None:
    name = server.topic_of(1, "written")
    keyed = append(server, name, "keyed", idempotency_key="k")
    numbered = append(server, name, "numbered", producer={"id": "p", "seq": 7})
    for seq in (8, 9):
        move(server, name)
        again = append(server, name, "keyed", idempotency_key="k")
        assert (again["first_seq"], again["deduped"]) == (keyed["first_seq"], True)
        again = append(server, name, "numbered", producer={"id": "p", "seq": 7}) if seq == 8 else None
        assert again is None or again["first_seq"] == numbered["first_seq"]
        gap = server.ask(
            "POST",
            f"/v0/topics/{name}",
            {"records": [{"data": 1}], "producer": {"id": "p", "seq": seq + 1}},
        )
        assert (gap.status, gap.json["error"]["detail"]["next_seq"]) == (409, seq)
        append(server, name, seq, producer={"id": "p", "seq": seq})
    assert data_of(server, name) == ["keyed", "numbered", 8, 9]


def test_a_delete_by_tag_finds_records_from_before_and_after_moves(server: WholeServer) -> None:
    name = server.topic_of(0, "tagged")
    for number in range(30):
        ask(server, "POST", name, {"records": [{"data": number, "tag": f"t{number % 3}"}]})
        if number % 10 == 9:
            move(server, name)
    assert ask(server, "POST", f"{name}/delete", {"match": "t1"})["deleted"] == 10
    move(server, name)
    assert data_of(server, name) == [number for number in range(30) if number % 3 != 1]
    assert ask(server, "POST", f"{name}/delete", {"match": "t1"})["deleted"] == 0


def test_a_topic_that_is_created_again_has_a_new_epoch_on_every_shard(server: WholeServer) -> None:
    name = server.topic_of(0, "again")
    epochs = set()
    for _ in range(4):
        append(server, name, 1)
        move(server, name)
        append(server, name, 2)
        epochs.add(ask(server, "GET", name)["epoch"])
        assert data_of(server, name) == [1, 2]
        assert ask(server, "DELETE", name)["deleted"]
        assert server.ask("GET", f"/v0/topics/{name}").status == 404
    assert len(epochs) == 4


def test_a_topic_that_is_home_again_has_no_entry(server: WholeServer) -> None:
    name = server.topic_of(1, "home")
    append(server, name, 1)

    def entries() -> Any:
        return json.loads((server.folder / "data/PLACEMENT.json").read_bytes())["exceptions"]

    for _ in range(3):
        assert move(server, name) == 0
        assert entries()[name] == 0
        assert move(server, name) == 1
        assert name not in entries()


def test_two_moves_of_one_topic_exclude_each_other(server: WholeServer) -> None:
    name = server.topic_of(0, "twice")
    append(server, name, *range(100))
    statuses: list[int] = []

    def ask_once() -> None:
        with RawClient(server.port) as client:
            statuses.append(client.ask("POST", f"/v0/topics/{name}/move", {"shard": 1}).status)

    threads = [threading.Thread(target=ask_once) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 429}
    assert ask(server, "GET", name)["shard"] == 1
    assert data_of(server, name) == list(range(100))


def test_metrics_count_moves(server: WholeServer) -> None:
    name = server.topic_of(0, "counted")
    append(server, name, 1)

    def total(metric: str) -> float:
        text = server.ask("GET", "/v0/metrics").body.decode()
        return sum(parse(text)[metric].series.values())

    before = total("topics_moves_total")
    move(server, name)
    server.wait_for(lambda: total("topics_moves_total") >= before + 1, "the move is counted")
    assert total("topics_move_pause_ms") > 0


def test_tools_and_spark_read_between_moves(tmp_path: Path) -> None:
    name = name_on(0, SHARDS, "read")
    with WholeServer(tmp_path, shards=SHARDS) as server:
        data = tmp_path / "data"
        ask(server, "PUT", name, {"durability": "fsync"})
        for number in range(6):
            append(server, name, number)
            shard = move(server, name)
            append(server, name, -number)
            # Before the target's next checkpoint: the frame of the adopt is in the log.
            with DirectoryView(parse_options({"path": str(data), "subscribe": name}, False)) as files:
                view = files.topics[name]
                assert (view.shard, view.head) == (shard, 2 * number + 2)
                # The log does not say whether its last batch is synced.
                assert view.durable >= 2 * number + 1
            assert run_here("verify", data).code == 0
        assert server.stop() == 0
        assert run_here("verify", data).code == 0
        assert run_here("doctor", data).code == 0
