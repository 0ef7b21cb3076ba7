"""The broker processes of a server: started, killed, hung, delayed by their store, and stopped."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.raw_client import Answer, body_bytes, request_bytes
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer, nothing_left_behind

HEALTH_FIELDS = ["status", "broker_id", "host", "port", "started_at_ms"]


def store_flag(folder: Path) -> str:
    (folder / "store").mkdir(exist_ok=True)
    return f"--store-url=file://{folder / 'store'}"


def exact_json(answer: Answer) -> Any:
    """Return the JSON of an answer with exactly the members of its contract, without the time it took."""
    assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
    return json.loads(answer.body)


def health(server: WholeServer) -> Any:
    return exact_json(server.ask("GET", "/health"))


def is_up(server: WholeServer) -> bool:
    return server.ask("GET", "/health").status == 200


def append(server: WholeServer, name: str) -> int:
    """Append a record to a topic of a shard; return its seq."""
    answer = server.ask_json("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
    last_seq: int = answer["last_seq"]
    return last_seq


def refusal_of(answer: Answer) -> tuple[int, str, str]:
    error = answer.json["error"]
    return answer.status, error["code"], error["message"]


def test_a_server_with_a_store_has_a_broker(tmp_path: Path) -> None:
    with nothing_left_behind(tmp_path), WholeServer(tmp_path, store_flag(tmp_path), shards=1) as server:
        assert list(health(server)) == HEALTH_FIELDS
        assert health(server)["port"] == server.port
        assert server.ask_json("GET", "/v0/ready")["brokers"] == [
            {"broker": 0, "state": "ready", "serving": True}
        ]
        # Through a worker, too: an HTTP/1.1 connection stays where its first request was placed.
        with server.connect() as client:
            assert client.ask("GET", "/v0/topics/a").status == 404
            assert exact_json(client.ask("GET", "/health")) == health(server)
        metrics = exact_json(server.ask("GET", "/metrics"))
        assert metrics["roles"] == ["write", "read", "compact"]
        assert metrics["batch"]["max_bytes"] == 8 << 20
        assert b"topicsd_broker_store_put_total" in server.ask("GET", "/metrics/prometheus").body
        assert server.stop() == 0


def test_a_server_without_brokers_says_how_to_get_one(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        for method, path in (("GET", "/health"), ("GET", "/v0/cluster")):
            status, code, message = refusal_of(server.ask(method, path))
            assert (status, code) == (501, "not_implemented")
            assert "TOPICS_STORE_URL" in message


def test_a_killed_broker_is_restarted_and_workers_are_not_affected(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), shards=2) as server:
        workers, before = server.worker_pids(), health(server)
        assert append(server, "orders") == 1
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGKILL)
            assert broker.wait()
        assert append(server, "orders") == 2
        # A name that is no topic here may be shared.
        unknown = server.ask("POST", "/v0/topics/unknown", {"records": [{"data": 1}]})
        assert unknown.status == 200 or refusal_of(unknown)[:2] == (503, "not_ready")
        down = server.ask("GET", "/health")
        assert down.status == 200 or refusal_of(down)[:2] == (503, "not_ready")
        server.wait_for(lambda: is_up(server), "the broker serves again")
        after = health(server)
        assert after["broker_id"] == before["broker_id"]
        assert after["started_at_ms"] > before["started_at_ms"]
        assert server.worker_pids() == workers
        assert b'topics_broker_restarts_total{broker="0"} 1' in server.ask("GET", "/v0/metrics").body
        assert server.stop() == 0


@pytest.mark.slow
def test_a_hung_broker_is_degraded_and_replaced(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), shards=1) as server:
        assert append(server, "a") == 1
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGSTOP)
            server.wait_for(lambda: server.ask("GET", "/health").status == 503, "the silence is noticed")
            ready = server.ask_json("GET", "/v0/ready")
            assert ready["status"] == "ready"
            assert ready["degraded"] == "broker 0 does not answer: shared topics wait"
            assert append(server, "a") == 2
            assert broker.wait()
        server.wait_for(lambda: is_up(server), "the broker serves again")


def test_a_node_without_shards_serves_by_its_broker(tmp_path: Path) -> None:
    with nothing_left_behind(tmp_path), WholeServer(tmp_path, store_flag(tmp_path), shards=0) as server:
        assert health(server)["status"] == "ok"
        assert server.worker_pids() == {}
        ready = server.ask_json("GET", "/v0/ready")
        assert (ready["status"], ready["shards"]) == ("ready", [])
        assert server.ask_json("GET", "/v0/topics")["topics"] == []
        assert server.ask("GET", "/v0/topics/absent").status == 404
        assert server.ask("GET", "/v0/nowhere").status == 404
        assert server.ask("GET", "/v0/metrics").status == 200
        assert server.ask_json("GET", "/v0/store")["kind"] == "file"
        assert refusal_of(server.ask("POST", "/v0/shards", {"count": 2}))[0] == 501
        assert refusal_of(server.ask("POST", "/v0/backup-points"))[0] == 501
        node = server.ask_json("GET", "/v0/cluster")["nodes"][0]["node"]
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGKILL)
            assert broker.wait()
        server.wait_for(lambda: is_up(server), "the broker serves again")
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        # The directory keeps the id of the node.
        server.start()
        assert server.ask_json("GET", "/v0/cluster")["nodes"][0]["node"] == node


def test_the_directory_of_a_stateless_node_stays_one(tmp_path: Path) -> None:
    flag = store_flag(tmp_path)
    with WholeServer(tmp_path, flag, shards=0) as server:
        assert server.stop() == 0
    data = tmp_path / "data"
    serve = ("serve", "--port=0", f"--data-dir={data}")
    assert "belongs to a stateless node, which needs brokers" in run_here(*serve).err
    assert "which has no shards" in run_here(*serve, flag, "--shards=2").err
    assert "has no shards to change" in run_here("reshard", data, "--shards", "2").err
    for command in ("doctor", "verify", "inspect"):
        assert run_here(command, data).code == 0


def test_a_broker_waits_for_a_store_that_is_away_and_shards_do_not(tmp_path: Path) -> None:
    flag = store_flag(tmp_path)
    catalog = f"--catalog-url=sqlite://{tmp_path / 'catalog'}"
    with WholeServer(tmp_path, flag, catalog, shards=1) as server:
        # The probes of the broker and of the shard have ended: they would make the folder again.
        server.wait_for(lambda: server.ask_json("GET", "/v0/store")["requests"]["delete"] >= 2, "probes end")
        (tmp_path / "store").rename(tmp_path / "away")
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGKILL)
            assert broker.wait()

        def is_delayed() -> bool:
            return "waits for the store" in server.ask_json("GET", "/v0/ready").get("degraded", "")

        server.wait_for(is_delayed, "the reason is shown")
        assert refusal_of(server.ask("GET", "/health"))[:2] == (503, "not_ready")
        assert server.ask_json("GET", "/v0/ready")["brokers"][0]["state"] == "starting"
        (tmp_path / "away").rename(tmp_path / "store")
        server.wait_for(lambda: is_up(server), "the broker serves when the store is back")
        (tmp_path / "store").rename(tmp_path / "away")
        with closing(server.a_broker()) as broker:
            broker.signal(signal.SIGKILL)
            assert broker.wait()
        server.wait_for(is_delayed, "the reason is shown")
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10


def test_acceptors_hand_connections_to_brokers(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), "--fronts=2", "--brokers=2", shards=1) as server:
        ids = {health(server)["broker_id"].rpartition("-")[0] for _ in range(40)}
        assert ids == {"broker-0", "broker-1"}
        assert server.stop() == 0


def test_keys_are_reloaded_in_brokers(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('api_keys = "first-key-0123456789:r"\n')
    with WholeServer(tmp_path, store_flag(tmp_path), f"--config={config}", shards=1) as server:
        first, second = (
            "authorization: Bearer first-key-0123456789",
            "authorization: Bearer second-key-0123456789",
        )
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/metrics").status == 401
        assert server.ask("GET", "/metrics", None, first).status == 200
        config.write_text('api_keys = "second-key-0123456789:r"\n')
        server.signal(signal.SIGHUP)
        server.wait_for(
            lambda: server.ask("GET", "/metrics", None, second).status == 200, "the new key works"
        )
        assert server.ask("GET", "/metrics", None, first).status == 401


def produce_body(value: str) -> dict[str, object]:
    return {"topic_partitions": [{"topic": "orders", "partition": 1, "records": [value]}]}


def consumed(server: WholeServer) -> list[str]:
    body = {"topic_partitions": [{"topic": "orders", "partition": 1, "fetch_offset": 1}]}
    (result,) = json.loads(server.ask("POST", "/consume", body).body)["results"]
    return [record["value"] for record in result["records"]]


def test_a_killed_broker_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    acked: list[str] = []
    with WholeServer(tmp_path, store_flag(tmp_path), "--batch-max-delay-ms=20", shards=0) as server:
        for kill in range(2):
            for number in range(5):
                answer = server.ask("POST", "/produce", produce_body(f"{kill}-{number}"))
                if answer.status == 200:
                    acked.append(f"{kill}-{number}")
            assert len(acked) >= 5 * (kill + 1)
            with closing(server.a_broker()) as broker:
                broker.signal(signal.SIGKILL)
                assert broker.wait()
            server.wait_for(lambda: is_up(server), "the broker serves again")
            assert consumed(server) == acked


def test_a_drain_settles_the_writes_that_wait(tmp_path: Path) -> None:
    with WholeServer(tmp_path, store_flag(tmp_path), "--batch-max-delay-ms=2s", shards=1) as server:
        assert server.ask("POST", "/produce", produce_body("first")).status == 200
        with server.connect() as client:
            client.send(request_bytes("POST", "/produce", body_bytes(produce_body("second"))))
            server.wait_for(lambda: queue_bytes(server) > 0, "the record waits")
            server.signal(signal.SIGTERM)
            assert client.read_answer().status == 200
        assert server.wait() == 0
        server.start()
        assert consumed(server) == ["first", "second"]


def queue_bytes(server: WholeServer) -> int:
    queue: int = exact_json(server.ask("GET", "/metrics"))["batcher"]["queue_bytes"]
    return queue


def test_a_node_refuses_what_is_no_role_of_its_brokers(tmp_path: Path) -> None:
    flags = store_flag(tmp_path), "--batch-max-delay-ms=20"
    record = {"records": [{"data": 1}]}
    new = {**record, "config": {"placement": "shared"}}
    read = {"topic_partitions": [{"topic": "orders", "partition": 0, "fetch_offset": 1}]}
    with WholeServer(tmp_path, *flags, "--broker-roles=read", shards=1) as server:
        # Topics are changed by any broker; records are not taken, and no request for some makes a topic.
        assert server.ask("PUT", "/v0/topics/orders", {"placement": "shared"}).status == 201
        for name, body in (("orders", record), ("other", new)):
            refused = server.ask("POST", f"/v0/topics/{name}", body)
            assert refusal_of(refused)[:2] == (503, "not_ready")
            assert refused.json["error"]["detail"] == {"role": "write"}
        (produced,) = json.loads(server.ask("POST", "/produce", produce_body("a")).body)["results"]
        assert (produced["error_type"], "TOPICS_BROKER_ROLES" in produced["error"]) == ("NotReady", True)
        assert [one["topic"] for one in server.ask_json("GET", "/v0/topics")["topics"]] == ["orders"]
        assert server.ask("POST", "/v0/topics/orders/diff", {}).status == 200
        assert server.ask("POST", "/consume", read).status == 200
        assert server.stop() == 0
    with WholeServer(tmp_path, *flags, "--broker-roles=write,compact", shards=1) as server:
        assert server.ask("POST", "/v0/topics/orders", record).status == 200
        for body in ({}, {"last": 1}, {"wait_ms": 1000}):
            refused = server.ask("POST", "/v0/topics/orders/diff", body)
            assert refusal_of(refused)[:2] == (503, "not_ready")
            assert refused.json["error"]["detail"] == {"role": "read"}
        (consumed_part,) = json.loads(server.ask("POST", "/consume", read).body)["results"]
        assert consumed_part["error_type"] == "NotReady"
        assert server.ask("GET", "/v0/topics/orders").status == 200
        assert server.stop() == 0
