"""Two servers with a store and a catalog: nodes that stop, kills, a catalog or a store that is away."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.test_seal_and_adopt import append, ask, eventually, has_row, servers, values
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


def owner(server: WholeServer, name: str) -> dict[str, Any]:
    status, row = ask(server, "GET", f"{name}/owner")
    assert status == 200, row
    return dict(row)


def given(answer: tuple[int, Any]) -> set[int]:
    """Return the seqs of an acknowledged append; empty for a refused one."""
    status, body = answer
    return set(range(body["first_seq"], body["last_seq"] + 1)) if status in (200, 201) else set()


@contextmanager
def stopped(server: WholeServer) -> Iterator[None]:
    """Stop all processes of a server, as a machine that hangs."""
    processes = [server.supervisor, *server.children()]
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)
            process.close()


def test_a_node_that_hung_gives_out_no_seq_of_the_new_owner(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        append(one, "orders", *range(30))
        eventually(has_row(one, "orders"))
        eventually(lambda: owner(one, "orders")["exported_to"] >= 10)
        by_one, by_other = set(range(1, 31)), set()
        with stopped(one):
            status, body = ask(other, "POST", "orders/adopt", {"accept_loss": True})
            assert (status, body["owner_epoch"]) == (200, 2), body
            by_other |= given(append(other, "orders", *range(5)))
        refused: list[Any] = []

        def write_until_refused() -> bool:
            answer = append(one, "orders", *range(10))
            by_one.update(given(answer))
            by_other.update(given(append(other, "orders", 1)))
            refused.extend([answer[1]] if "error" in answer[1] else [])
            return bool(refused)

        eventually(write_until_refused, 30)
        error = refused[0]["error"]
        assert (error["code"], error["detail"]["node"]) == ("topic_moved", owner(other, "orders")["node"])
        assert by_other
        assert by_one.isdisjoint(by_other)
        assert min(by_other) > max(by_one)
        # Its files are kept, and the tools say what they are.
        one.stop()
        one.start()
        assert append(one, "orders", 1)[1]["error"]["code"] == "topic_moved"


def killed_during(server: WholeServer, action: str, body: Any, seconds: float) -> None:
    """Send a request, kill the server meanwhile, and start it again."""

    def send() -> None:
        with suppress(OSError, ValueError, AssertionError):
            ask(server, "POST", action, body)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(seconds)
    server.kill()
    sender.join()
    server.start()


def is_done(server: WholeServer, action: str) -> bool:
    """Repeat the request; return whether it is done, now or before."""
    status, body = ask(server, "POST", f"orders/{action}", {})
    return status == 200 or (action == "seal" and body["error"]["code"] == "topic_sealed")


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_during_seals_and_adopts_lose_nothing(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    one, other = servers(tmp_path)
    expected: list[int] = []
    with one, other:
        for turn in range(3):
            count = random.randrange(1, 40)
            sent = range(len(expected), len(expected) + count)
            assert given(append(one, "orders", *sent)) == {value + 1 for value in sent}
            expected += sent
            eventually(has_row(one, "orders"))
            killed_during(one, "orders/seal", {}, random.uniform(0, 0.5))
            eventually(partial(is_done, one, "seal"), 30)
            assert owner(one, "orders")["state"] == "sealed"
            killed_during(other, "orders/adopt", {}, random.uniform(0, 0.5))
            eventually(partial(is_done, other, "adopt"), 30)
            row = owner(other, "orders")
            assert (row["is_here"], row["state"], row["owner_epoch"]) == (True, "owned", turn + 2)
            assert values(other, "orders") == expected
            one, other = other, one


def test_writes_continue_while_the_catalog_is_away(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one:
        append(one, "before", *range(25))
        eventually(has_row(one, "before"))
        catalog = sqlite3.connect(tmp_path / "objects" / "catalog.sqlite", isolation_level=None)
        catalog.execute("BEGIN EXCLUSIVE")
        try:
            until = time.monotonic() + 12
            written = 25
            while time.monotonic() < until:
                assert given(append(one, "before", written)) == {written + 1}
                written += 1
                # Two nodes could give the name to two topics.
                refused = append(one, "during", written)[1]["error"]
                assert refused["code"] == "catalog_unavailable"
                time.sleep(0.05)
            eventually(lambda: "catalog" in one.ask("GET", "/v0/ready").json.get("degraded", ""), 30)
            assert one.ask("GET", "/v0/store").json["catalog"]["state"] == "away"
        finally:
            catalog.execute("ROLLBACK")
            catalog.close()
        eventually(lambda: append(one, "during", 1)[0] == 201, 60)
        eventually(lambda: "degraded" not in one.ask("GET", "/v0/ready").json, 60)
        assert values(one, "before") == list(range(written))
        status, body = ask(one, "POST", "before/seal", {})
        assert (status, body["exported_to"]) == (200, written), body
    with other:
        assert ask(other, "POST", "before/adopt", {})[0] == 200
        assert values(other, "before") == list(range(written))


def test_exports_catch_up_after_the_store_was_away(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    objects.mkdir()
    environ = {
        "TOPICS_STORE_URL": f"file://{objects}",
        "TOPICS_CATALOG_URL": f"sqlite://{tmp_path / 'catalog.sqlite'}",
        "TOPICS_SEGMENT_MAX_EVENTS": "10",
        "TOPICS_CHECKPOINT_INTERVAL_MS": "300",
    }
    with WholeServer(tmp_path, environ=environ) as server:

        def exports() -> dict[str, Any]:
            return dict(server.ask("GET", "/v0/store").json["exports"])

        append(server, "orders", *range(20))
        eventually(lambda: exports()["segments"] >= 1, 30)
        away = objects.rename(tmp_path / "away")
        append(server, "orders", *range(20, 60))
        eventually(lambda: exports()["failures"] > 0, 30)
        eventually(lambda: exports()["waiting_segments"] >= 3, 30)
        assert exports()["last_failure_ms"] > 0
        assert "degraded" in server.ask("GET", "/v0/ready").json
        assert values(server, "orders") == list(range(60))
        away.rename(objects)
        eventually(lambda: owner(server, "orders")["exported_to"] >= 50, 90)
        eventually(lambda: exports()["waiting_segments"] == 0, 30)
        eventually(lambda: "degraded" not in server.ask("GET", "/v0/ready").json, 90)
        metrics = server.ask("GET", "/v0/metrics").body
        for name in (b"topics_export_failures_total", b"topics_catalog_requests_total", b"topics_departed"):
            assert name in metrics
