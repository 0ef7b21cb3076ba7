"""Shared topics through a whole server: from a shard to the broker and back, and across restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.raw_client import Answer
from tests.harness.server.whole_server import WholeServer

OCTETS = "application/octet-stream"


def store_flag(folder: Path) -> str:
    (folder / "store").mkdir(exist_ok=True)
    return f"--store-url=file://{folder / 'store'}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    folder = tmp_path_factory.mktemp("server")
    with WholeServer(folder, store_flag(folder), shards=2) as running:
        yield running


def path_of(name: str) -> str:
    return f"/v0/topics/{name}"


def exact_json(answer: Answer) -> Any:
    """Return the JSON of an answer with exactly the members of its contract: without `performance`."""
    return json.loads(answer.body)


def produce(server: WholeServer, topic: str, *records: object) -> Any:
    group = {"topic": topic, "partition": 0, "records": records}
    answer = server.ask("POST", "/produce", {"topic_partitions": [group]})
    assert answer.status == 200, answer
    return exact_json(answer)


def consume(server: WholeServer, topic: str, offset: int = 1, path: str = "/consume") -> Any:
    read = {"topic": topic, "partition": 0, "fetch_offset": offset}
    answer = server.ask("POST", path, {"topic_partitions": [read]})
    assert answer.status == 200, answer
    return exact_json(answer)["results"][0]


def values(server: WholeServer, name: str) -> list[Any]:
    answer = server.ask_json("POST", f"{path_of(name)}/diff", {"after_seq": 0})
    return [record["data"] for record in answer["records"]]


def test_a_shared_topic_is_used_as_a_local_one_and_outlives_a_restart(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), shards=2) as server:
        assert server.ask("PUT", path_of("orders"), {"placement": "shared"}).status == 201
        server.ask_json("POST", path_of("orders"), {"records": [{"data": {"n": 1}}, {"data": "two"}]})
        assert values(server, "orders") == [{"n": 1}, "two"]
        produce(server, "audit", "a", {"base64": "AAE="})
        state = server.ask_json("GET", path_of("orders"))
        assert server.stop() == 0
        server.start()
        after = server.ask_json("GET", path_of("orders"))
        assert {**after, "performance": 0} == {**state, "performance": 0}
        assert values(server, "orders") == [{"n": 1}, "two"]
        assert consume(server, "audit")["records"] == [
            {"offset": 1, "value": "a"},
            {"offset": 2, "base64": "AAE="},
        ]
        assert produce(server, "audit", "b")["results"][0]["start_offset"] == 3


def test_both_paths_of_produce_and_consume_are_one(server: WholeServer) -> None:
    group = {"topic": "both", "partition": 0, "records": ["a"]}
    answer = server.ask("POST", "/v0/produce", {"topic_partitions": [group]})
    assert (answer.status, list(exact_json(answer))) == (200, ["results", "success_count", "error_count"])
    assert consume(server, "both", path="/v0/consume") == consume(server, "both")
    assert server.ask("GET", "/produce").status == 405


def test_produce_and_append_write_one_log(server: WholeServer) -> None:
    produce(server, "mixed", "text")
    server.ask_json("POST", path_of("mixed"), {"records": [{"data": {"n": 1}, "tag": "t"}]})
    assert values(server, "mixed") == ["text", {"n": 1}]
    assert [one["value"] for one in consume(server, "mixed")["records"]] == ["text", '{"n": 1}']


@pytest.mark.parametrize("shards", [0, 1])
def test_a_body_of_bytes_is_a_record_at_any_process(tmp_path: Path, shards: int) -> None:
    """At the broker, and at a shard; in memory, in the spool, and as a mapped body of the link."""
    flags = store_flag(tmp_path), "--max-record-bytes=8388608"
    with WholeServer(tmp_path, *flags, shards=shards) as server:
        assert server.ask("PUT", path_of("shared"), {"placement": "shared"}).status == 201
        for first in ("/health", path_of("shared")):
            with server.connect() as client:
                # It places the connection: at the broker, or at a shard if there is one.
                assert client.ask("GET", first).status == 200
                for size in (0, 10, 300 << 10, 5 << 20):
                    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
                    for name in ("shared", "local")[: 1 + shards]:
                        path = f"{path_of(name)}/records"
                        key = f"idempotency-key: {first}-{size}"
                        ask = partial(client.ask, "POST", path, data, key, content_type=OCTETS)
                        answer = ask()
                        assert answer.status in (200, 201), answer
                        read = client.ask("GET", f"{path}/{answer.json['last_seq']}")
                        assert (read.status, read.fields["content-type"]) == (200, OCTETS)
                        assert read.body == data
                        assert ask().json["deduped"] is True
        assert client_error(server, "POST", f"{path_of('shared')}/records") == (415, "unsupported_media_type")
        assert client_error(server, "GET", f"{path_of('shared')}/records/99") == (404, "not_found")


def client_error(server: WholeServer, method: str, path: str) -> tuple[int, str]:
    answer = server.ask(method, path, {} if method == "POST" else None)
    return answer.status, answer.code


def test_a_local_topic_is_not_touched_by_the_broker(server: WholeServer) -> None:
    created = server.ask("POST", path_of("local"), {"records": [{"data": 1}]})
    assert (created.status, created.json["durability"]) == (201, "disk")
    refused = server.ask("PUT", path_of("local"), {"placement": "shared"})
    assert (refused.status, refused.code) == (409, "topic_exists_incompatible")
    group = {"topic": "local", "partition": 0, "records": ["a"]}
    answer = server.ask("POST", "/produce", {"topic_partitions": [group]})
    result = exact_json(answer)["results"][0]
    assert (answer.status, result["error_type"]) == (409, "TopicExistsIncompatible")
    assert server.ask("POST", f"{path_of('local')}/fence").code == "not_supported"


def test_a_connection_at_the_broker_reaches_local_topics_too(server: WholeServer) -> None:
    with server.connect() as client:
        # The first request places the connection at the broker.
        assert client.ask("GET", "/health").status == 200
        created = client.ask("POST", path_of("beside"), {"records": [{"data": 1}]})
        assert (created.status, created.json["durability"]) == (201, "disk")
        assert client.ask("GET", path_of("beside")).json["head_seq"] == 1
        assert client.ask("GET", path_of("missing")).status == 404
        assert client.ask("PUT", path_of("beside-shared"), {"placement": "shared"}).status == 201
        assert client.ask("PUT", path_of("beside"), {"placement": "shared"}).status == 409
    assert server.ask_json("GET", path_of("beside-shared"))["placement"] == "shared"


def test_the_list_has_both_kinds_in_the_order_of_their_names(server: WholeServer) -> None:
    for name, placement in (("list-a", "shared"), ("list-b", "local"), ("list-c", "shared")):
        server.ask_json("PUT", path_of(name), {"placement": placement})
    listed = server.ask_json("GET", "/v0/topics?prefix=list-")["topics"]
    assert [(one["topic"], one["placement"]) for one in listed] == [
        *(("list-a", "shared"), ("list-b", "local"), ("list-c", "shared")),
    ]
    names, cursor = [], ""
    while True:
        page = server.ask_json("GET", f"/v0/topics?prefix=list-&page_size=1{cursor}")
        names += [one["topic"] for one in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert names == ["list-a", "list-b", "list-c"]


def test_routes_and_streams_of_jobs_are_refused_by_name(server: WholeServer) -> None:
    server.ask_json("PUT", path_of("no-routes"), {"placement": "shared"})
    server.ask_json("PUT", path_of("source"), {})
    for source, dest, field in (("source", "no-routes", "dest"), ("no-routes", "source", "source")):
        answer = server.ask("PUT", "/v0/routers/r", {"source": source, "dest": dest})
        assert (answer.status, answer.code) == (409, "not_supported")
        assert answer.json["error"]["detail"] == {"field": field, "feature": "routes"}
    jobs = server.ask("GET", f"{path_of('no-routes')}/work?node=n")
    assert (jobs.status, jobs.json["error"]["detail"]) == (409, {"feature": "queues"})
    assert server.ask("GET", f"{path_of('none')}/work?node=n").status == 404


def test_requests_for_shared_topics_are_in_the_metrics_of_their_broker(server: WholeServer) -> None:
    def counts() -> list[int]:
        metrics = exact_json(server.ask("GET", "/metrics"))
        members = ("http", "appends"), ("http", "reads"), ("produce", "requests"), ("consume", "waits")
        return [metrics[section][name] for section, name in members]

    produce(server, "counted", "a", "b")
    before = counts()
    produce(server, "counted", "c")
    server.ask_json("POST", path_of("counted"), {"records": [{"data": 1}, {"data": 2}]})
    with server.connect() as client:
        path = f"{path_of('counted')}/records"
        assert client.ask("POST", path, b"x", content_type=OCTETS).status == 200
    server.ask_json("POST", f"{path_of('counted')}/diff", {"after_seq": 0})
    read = {"topic": "counted", "partition": 0, "fetch_offset": 7}
    answer = server.ask("POST", "/consume", {"topic_partitions": [read], "max_wait_ms": 20})
    assert answer.status == 200
    assert [after - one for after, one in zip(counts(), before, strict=True)] == [3, 2, 3, 1]


def test_a_queue_cannot_send_dead_letters_to_a_shared_topic(server: WholeServer) -> None:
    server.ask_json("PUT", path_of("dead-shared"), {"placement": "shared"})
    for shard in range(2):
        queue = path_of(server.topic_of(shard, f"queue{shard}"))
        config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead-shared"}
        refused = server.ask("PUT", queue, config)
        assert (refused.status, refused.code) == (409, "not_supported")
        assert refused.json["error"]["detail"] == {"field": "dead_letter", "feature": "dead_letter"}
        refused = server.ask("POST", queue, {"records": [{"data": 1}], "config": config})
        assert refused.json["error"]["detail"] == {"field": "config.dead_letter", "feature": "dead_letter"}
        assert server.ask("GET", queue).status == 404
        # What is neither is made as a local topic later.
        assert server.ask("PUT", queue, {**config, "dead_letter": "dead-local"}).status == 201
        refused = server.ask("PUT", queue, {"dead_letter": "dead-shared"})
        assert (refused.status, refused.code) == (409, "not_supported")
        assert server.ask_json("GET", queue)["config"]["dead_letter"] == "dead-local"


def test_an_append_with_a_key_outlives_its_broker(tmp_path: Path) -> None:
    """The worker repeats it until the broker is back, and the records are there once."""
    slow = "--batch-max-delay-ms=1500"
    with WholeServer(tmp_path, store_flag(tmp_path), slow, shards=1) as server:
        server.ask_json("PUT", path_of("orders"), {"placement": "shared"})
        body = {"records": [{"data": 1}], "idempotency_key": "k"}
        with server.connect() as client:
            begun = client.start("POST", path_of("orders"), body)
            server.wait_for(lambda: _pending(server), "the append waits in the broker")
            with closing(server.a_broker()) as broker:
                broker.signal(signal.SIGKILL)
                assert broker.wait()
            answer = client.finish(begun)
        assert (answer.status, answer.json["seqs"]) == (200, [1])
        assert values(server, "orders") == [1]


def test_while_the_broker_is_away_only_unknown_names_are_refused(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), shards=1) as server:
        server.ask_json("PUT", path_of("local"), {})
        server.ask_json("PUT", path_of("shared"), {"placement": "shared"})
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGSTOP)
            server.wait_for(lambda: server.ask("GET", path_of("shared")).status == 503, "it is away")
            assert server.ask("POST", path_of("local"), {"records": [{"data": 1}]}).status == 200
            refused = server.ask("POST", path_of("new"), {"records": [{"data": 1}]})
            assert (refused.status, refused.code) == (503, "not_ready")
            assert refused.fields["retry-after"] == "1"
            listed = server.ask("GET", "/v0/topics")
            assert listed.status == 503
            assert server.ask_json("GET", "/v0/topics?partial=true")["missing_shared"] is True
            broker.signal(signal.SIGCONT)
        server.wait_for(lambda: server.ask("GET", path_of("shared")).status == 200, "it is back")


def test_a_key_with_prefixes_is_held_to_them(tmp_path: Path) -> None:
    keys = "--api-keys=root,mine:read+write:mine."
    with WholeServer(tmp_path, store_flag(tmp_path), keys, shards=1) as server:
        mine, root = "authorization: Bearer mine", "authorization: Bearer root"
        group = {"topic": "mine.a", "partition": 0, "records": ["a"]}
        body = {"topic_partitions": [group]}
        assert server.ask("POST", "/produce", body, mine).status == 200
        other = {"topic_partitions": [group, {**group, "topic": "other"}]}
        assert server.ask("POST", "/produce", other, mine).status == 403
        read = {"topic_partitions": [{"topic": "other", "partition": 0, "fetch_offset": 1}]}
        assert server.ask("POST", "/consume", read, mine).status == 403
        assert server.ask("POST", "/produce", body).status == 401
        assert server.ask("POST", f"{path_of('mine.a')}/fence", None, mine).status == 403
        assert server.ask("POST", f"{path_of('mine.a')}/fence", None, root).status == 200


def test_a_server_without_brokers_says_what_it_needs(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        answer = server.ask("POST", "/produce", {"topic_partitions": []})
        assert (answer.status, answer.code) == (501, "not_implemented")
        put = server.ask("PUT", path_of("a"), {"placement": "shared"})
        assert (put.status, put.json["error"]["detail"]["field"]) == (400, "placement")


def test_a_node_without_shards_has_shared_topics_only(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), shards=0) as server:
        assert server.ask("PUT", path_of("a"), {"placement": "shared"}).status == 201
        server.ask_json("POST", path_of("a"), {"records": [{"data": 1}]})
        assert values(server, "a") == [1]
        refused = server.ask("POST", path_of("b"), {"records": [{"data": 1}]})
        assert (refused.status, refused.code, '"placement":"shared"' in refused.message) == (
            404,
            "topic_not_found",
            True,
        )
        with server.connect() as client:
            refused = client.ask("POST", f"{path_of('b')}/records", b"x", content_type=OCTETS)
            assert (refused.status, refused.code) == (404, "topic_not_found")
        for body, field in (({}, "placement"), ({"placement": "shared", "latency": "fast"}, "latency")):
            refused = server.ask("PUT", path_of("b"), body)
            assert (refused.status, refused.json["error"]["detail"]["field"]) == (400, field)
        assert server.ask("GET", path_of("b")).status == 404
        assert [one["topic"] for one in server.ask_json("GET", "/v0/topics")["topics"]] == ["a"]


def _pending(server: WholeServer) -> bool:
    return bool(exact_json(server.ask("GET", "/metrics"))["batcher"]["queue_bytes"])
