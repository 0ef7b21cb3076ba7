"""Two real servers that share a folder of objects and a catalog: a topic moves from one to the other."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer, name_on


def servers(tmp_path: Path) -> tuple[WholeServer, WholeServer]:
    objects = tmp_path / "objects"
    objects.mkdir()
    environ = {
        "TOPICS_STORE_URL": f"file://{objects}",
        "TOPICS_SEGMENT_MAX_EVENTS": "10",
        "TOPICS_CHECKPOINT_INTERVAL_MS": "300",
    }
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    one, other = (WholeServer(folder, environ=environ) for folder in folders)
    return one, other


def ask(server: WholeServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    answer = server.ask(method, f"/v0/topics/{path}", body)
    return answer.status, answer.json


def eventually(what: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


def append(server: WholeServer, name: str, *values: int) -> tuple[int, Any]:
    return ask(server, "POST", name, {"records": [{"data": value} for value in values]})


def values(server: WholeServer, name: str) -> list[Any]:
    return [
        one["data"]
        for one in ask(server, "POST", f"{name}/diff", {"after_seq": 0, "limit": 1000})[1]["records"]
    ]


def has_row(server: WholeServer, name: str) -> Callable[[], bool]:
    return lambda: ask(server, "GET", f"{name}/owner")[0] == 200


@pytest.mark.slow
def test_a_sealed_topic_continues_at_another_server(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        for number in range(25):
            assert append(one, "orders", number)[0] in (200, 201)
        eventually(has_row(one, "orders"))
        status, body = ask(other, "POST", "orders/adopt", {})
        assert (status, body["error"]["code"]) == (409, "topic_moved"), body
        status, body = ask(one, "POST", "orders/seal", {})
        assert (status, body["state"], body["exported_to"]) == (200, "sealed", 25), body
        assert append(one, "orders", 1)[1]["error"]["code"] == "topic_sealed"
        status, body = ask(other, "POST", "orders/adopt", {})
        assert (status, body["is_here"], body["owner_epoch"]) == (200, True, 2), body
        assert append(other, "orders", 25)[1]["first_seq"] == 26
        assert values(other, "orders") == list(range(26))
        other.kill()
        other.start()
        assert values(other, "orders") == list(range(26))
        one.kill()
        one.start()
        assert append(one, "orders", 1)[1]["error"]["code"] in ("topic_sealed", "topic_moved")
        assert ask(one, "GET", "orders/owner")[1]["is_here"] is False


@pytest.mark.slow
def test_a_name_belongs_to_the_server_that_creates_its_topic_until_it_is_deleted(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        assert append(one, "orders", 1)[0] == 201
        assert ask(other, "GET", "orders/owner")[0] == 200
        status, body = append(other, "orders", 2)
        assert (status, body["error"]["code"]) == (409, "topic_moved"), body
        assert body["error"]["detail"]["node"] == ask(one, "GET", "orders/owner")[1]["node"]
        assert ask(other, "GET", "orders")[0] == 404
        assert ask(one, "POST", "orders/seal", {})[0] == 200
        assert append(one, "orders", 2)[1]["error"]["code"] == "topic_sealed"
        assert ask(other, "POST", "orders/adopt", {})[0] == 200
        assert ask(other, "DELETE", "orders")[0] == 200
        eventually(lambda: append(one, "orders", 3)[0] == 201)
        assert values(one, "orders") == [3]
        assert append(other, "orders", 4)[1]["error"]["code"] == "topic_moved"


@pytest.mark.slow
def test_a_copy_of_a_server_does_not_start_beside_it(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one:
        assert append(one, "orders", 1)[0] == 201
        shutil.copytree(one.folder / "data", other.folder / "data")
        with pytest.raises(AssertionError, match="runs as the same node"):
            other.start()
        assert append(one, "orders", 2)[1]["first_seq"] == 2
    with other:
        # A worker of the original may still hold the lock of its shard.
        eventually(lambda: append(other, "orders", 3)[0] == 200)


@pytest.mark.slow
def test_a_topic_of_a_lost_server_continues_above_its_ceiling(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        append(one, "orders", *range(30))
        eventually(has_row(one, "orders"))
        eventually(lambda: ask(one, "GET", "orders/owner")[1]["exported_to"] >= 10)
        one.kill()
        row = ask(other, "GET", "orders/owner")[1]
        status, body = ask(other, "POST", "orders/adopt", {"accept_loss": True})
        assert status == 200, body
        assert append(other, "orders", 1)[1]["first_seq"] == row["ceiling"] + 1
        # The read stops at the lost range.
        assert values(other, "orders") == list(range(row["exported_to"]))
        one.start()
        eventually(lambda: "error" in append(one, "orders", 1)[1])
        assert append(one, "orders", 1)[1]["error"]["code"] == "topic_moved"


def has_logged(server: WholeServer, text: str, count: int) -> bool:
    return server.log.read_text().count(text) >= count


@pytest.mark.slow
def test_topics_that_changed_their_shard_are_served_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    environ = {"TOPICS_STORE_URL": f"file://{tmp_path}/objects"}
    names = [name_on(shard, 2, "moved") for shard in (0, 1)] + [f"grown{number}" for number in range(8)]
    with WholeServer(tmp_path, shards=2, environ=environ) as server:
        for name in names:
            assert append(server, name, 1)[0] == 201
            eventually(has_row(server, name))
        for shard, name in enumerate(names[:2]):
            assert ask(server, "POST", f"{name}/move", {"shard": 1 - shard})[1]["moved"]
        decided = 0
        for shard_count in (2, 3):
            if shard_count == 3:
                assert server.ask("POST", "/v0/shards", {"count": 3}).status == 200
                eventually(lambda: server.ask_json("GET", "/v0/shards")["count"] == 3)
            # Each shard that has topics decides.
            decided += len({ask(server, "GET", name)[1]["shard"] for name in names})
            server.kill()
            server.start()
            eventually(partial(has_logged, server, "ownership of topics decided", decided))
            for name in names:
                assert values(server, name) == [1], name
                assert ask(server, "GET", f"{name}/owner")[1]["is_here"]
        assert "not served any more" not in server.log.read_text()
        assert "no files of it" not in server.log.read_text()


def vacuumed(data_dir: Path) -> Any:
    ran = run_here("store", "vacuum", data_dir, "--apply", "--json")
    assert (ran.err, ran.code) == ("", 0)
    return ran.json


@pytest.mark.slow
def test_vacuum_of_either_server_keeps_what_the_other_reads(tmp_path: Path) -> None:
    one, other = servers(tmp_path)
    with one, other:
        append(one, "orders", *range(25))
        append(one, "bills", *range(25))
        for name in ("orders", "bills"):
            eventually(has_row(one, name))
        assert ask(one, "POST", "orders/seal", {})[0] == 200
        assert ask(other, "POST", "orders/adopt", {})[0] == 200
        append(other, "orders", *range(25, 50))
        for server, name, to in ((one, "bills", 20), (other, "orders", 40)):

            def is_exported(server: WholeServer = server, name: str = name, to: int = to) -> bool:
                exported_to: int = ask(server, "GET", f"{name}/owner")[1]["exported_to"]
                return exported_to >= to

            eventually(is_exported, 60.0)
        # The next snapshots name what was exported.
        for server in (one, other):
            server.kill()
            server.start()
        eventually(lambda: values(other, "orders") == list(range(50)))
        objects = sorted((tmp_path / "objects" / "segments").rglob("*.*"))
        left = [folder / "1-seg-0000000000000001-00c0ffee.data" for folder in {one.parent for one in objects}]
        assert len(left) == 2
        for file in left:
            file.write_bytes(b"left")
        days_ago = time.time() - 3 * 86_400
        for file in (*objects, *left):
            os.utime(file, (days_ago, days_ago))
        reports = [vacuumed(tmp_path / name / "data") for name in "ab"]
        assert not any(file.exists() for file in left)
        assert all(len(report["orphans"]) < len(objects) / 4 for report in reports), reports
        assert all(report["elsewhere"] + report["unknown"] >= 5 for report in reports), reports
        for server in (one, other):
            server.kill()
            server.start()
        eventually(lambda: values(other, "orders") == list(range(50)))
        assert values(one, "bills") == list(range(25))
        catalog = tmp_path / "objects" / "catalog.sqlite"
        catalog.rename(tmp_path / "away.sqlite")
        ran = run_here("store", "vacuum", tmp_path / "a" / "data", "--apply", "--sole-directory")
        (tmp_path / "away.sqlite").rename(catalog)
        assert (ran.code, "name it with --catalog-url" in ran.err) == (2, True)
