"""Backups of running and stopped servers, restored and compared with what the server said or acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.books.process_ledger import book_of, seed_of_this_run
from tests.harness.clients.topic_client import TopicClient
from tests.harness.clients.writer_clients import Writers
from tests.harness.output.command_run import command_line, environment, run_command, run_here
from tests.harness.server.everything import Everything, Said, ask, server
from tests.harness.server.everything_fill import KEY
from tests.harness.server.whole_server import WholeServer, name_on

SMALL = ("--segment-max-events=200", "--wal-file-bytes=1MiB", "--checkpoint-interval-ms=300")


def create(data: Path, store: Path, *flags: str) -> Any:
    store.mkdir(exist_ok=True)
    made = run_here("backup", "create", data, "--to", store, "--json", *flags)
    assert made.code == 0, made.err
    return made.json


def restore(store: Path, target: Path, *flags: object, backup_id: str = "") -> None:
    restored = run_here("backup", "restore", store, *[backup_id][: bool(backup_id)], target, *flags)
    assert restored.code == 0, restored.err
    checked = run_here("verify", target)
    assert (checked.code, "WRONG" in checked.out) == (0, False), checked.out


def create_unchanged(api: TopicClient, data: Path, store: Path) -> Said:
    """Create a backup while nothing changes: routes still copy the ranges that the start reported as lost."""
    for _ in range(20):
        before = ask(api)
        assert create(data, store)["pause_ms"] > 0
        if heads_of(ask(api)) == heads_of(before):
            return before
    raise AssertionError("the topics still change")


def heads_of(said: Said) -> dict[str, int]:
    return {name: state["head_seq"] for name, state in said.states.items()}


def test_the_directory_of_everything_is_restored_as_it_was(everything: Everything, tmp_path: Path) -> None:
    copy = everything.copied(tmp_path / "original")
    with server(copy.folder) as running:
        before = create_unchanged(TopicClient(running.port, KEY), copy.data, tmp_path / "store")
        running.kill()
    restored = tmp_path / "restored"
    # The restored directory needs nothing of the store that the original exported segments to.
    (restored / "cold").mkdir(parents=True)
    restore(tmp_path / "store", restored / "data")
    with server(restored) as running:
        after = ask(TopicClient(running.port, KEY))
    ephemeral = {
        name for name, state in before.states.items() if state["config"]["durability"] == "ephemeral"
    }
    assert after.rows.keys() == before.rows.keys()
    for name in before.rows.keys() - ephemeral:
        assert after.rows[name] == before.rows[name], name
        assert after.cursors[name] == before.cursors[name], name
        assert after.states[name]["head_seq"] == before.states[name]["head_seq"], name
    assert [one["router"] for one in after.routes] == [one["router"] for one in before.routes]


def test_a_stopped_directory_is_restored_with_the_ends_of_its_logs(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as running:
        TopicClient(running.port).append("a", *[{"data": number} for number in range(50)])
        said = ask(TopicClient(running.port))
        running.stop()
    made = create(tmp_path / "data", tmp_path / "store")
    assert made["pause_ms"] is None
    restore(tmp_path / "store", tmp_path / "restored" / "data")
    with WholeServer(tmp_path / "restored", shards=2) as running:
        assert ask(TopicClient(running.port)).rows == said.rows


@pytest.mark.parametrize("shards", [1, 3])
def test_a_backup_under_load_holds_a_prefix_of_each_topic(tmp_path: Path, shards: int) -> None:
    """Every record acknowledged before the backup is in it, and none of those sent after it."""
    book = book_of(shards)
    with WholeServer(tmp_path, *SMALL, shards=shards) as running:
        book.make_topics(running.port)
        with Writers(running.port, book, seed_of_this_run()):
            time.sleep(2)
            before = heads(running, book.topics)
            made = create(tmp_path / "data", tmp_path / "store")
            after = heads(running, book.topics)
            time.sleep(0.5)
            create(tmp_path / "data", tmp_path / "store")
        assert not book.complaints, book.complaints[:3]
        original = {name: TopicClient(running.port).rows(name) for name in book.topics}
        running.kill()
    assert made["pause_ms"] < 500
    restored = tmp_path / "restored"
    listed = run_here("backup", "list", tmp_path / "store", "--json").json["backups"]
    restore(tmp_path / "store", restored / "data", backup_id=listed[1]["id"])
    with WholeServer(restored, shards=shards) as running:
        for name in book.topics:
            rows = TopicClient(running.port).rows(name)
            assert rows == original[name][: len(rows)], name
            assert before[name] <= len(rows) <= after[name], name
            state = TopicClient(running.port).state(name)
            assert state["head_seq"] == len(rows), name


def heads(running: WholeServer, topics: Any) -> dict[str, int]:
    return {name: TopicClient(running.port).state(name)["head_seq"] for name in topics}


def test_no_copy_between_shards_is_ahead_of_its_source(tmp_path: Path) -> None:
    source, copy = name_on(0, 2, "s"), name_on(1, 2, "c")
    (tmp_path / "store").mkdir()
    with WholeServer(tmp_path, *SMALL, shards=2) as running:
        api = TopicClient(running.port)
        api.append(source, {"data": 0})
        api.ask("PUT", "routers/r", {"source": source, "dest": copy, "create_dest": True, "from": "earliest"})
        with subprocess.Popen(
            command_line("backup", "create", tmp_path / "data", "--to", tmp_path / "store"), env=environment()
        ) as process:
            number = 1
            while process.poll() is None:
                api.append(source, *[{"data": number + index} for index in range(10)])
                number += 10
        assert process.returncode == 0
        running.kill()
    restore(tmp_path / "store", tmp_path / "restored" / "data")
    with WholeServer(tmp_path / "restored", shards=2) as running:
        api = TopicClient(running.port)
        originals = [row["data"] for row in api.rows(source)]
        assert originals == list(range(len(originals)))
        # The route continues from its cursor: every record arrives, each once.
        api.wait_for_rows(copy, len(originals))
        assert [row["data"] for row in api.rows(copy)] == originals


def test_an_unchanged_directory_uploads_almost_nothing_again(tmp_path: Path) -> None:
    with WholeServer(tmp_path, *SMALL, shards=1) as running:
        api = TopicClient(running.port)
        for _ in range(20):
            api.append("a", *[{"data": "x" * 1000} for _ in range(100)])
        time.sleep(1)
        running.stop()
    first = create(tmp_path / "data", tmp_path / "store")
    assert first["uploaded_bytes"] > 1_000_000
    assert create(tmp_path / "data", tmp_path / "store")["uploaded_bytes"] == 0
    assert create(tmp_path / "data", tmp_path / "store", "--full")["uploaded_bytes"] == 0


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a store with one backup of several kinds of files."""
    with WholeServer(tmp_path, *SMALL, shards=2) as running:
        api = TopicClient(running.port)
        for name in (name_on(0, 2, "a"), name_on(1, 2, "a")):
            for _ in range(15):
                api.append(name, *[{"data": "y" * 1000, "tag": "t"} for _ in range(100)])
            api.call(name, "delete", match=["tag", "Eq", "none"])
        time.sleep(1)
        running.stop()
    create(tmp_path / "data", tmp_path / "store")
    return tmp_path / "store"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [damage, cut, Path.unlink])
def test_every_damaged_or_missing_object_is_found(stored: Path, harm: Callable[[Path], None]) -> None:
    assert run_here("backup", "verify", stored).code == 0
    objects = [path for path in stored.rglob("*") if path.is_file() and path.parent.name != "manifest"]
    assert len(objects) >= 3
    (backup,) = run_here("backup", "list", stored, "--json").json["backups"]
    for path in objects:
        content = path.read_bytes()
        harm(path)
        checked = run_here("backup", "verify", stored)
        is_manifest = path.name == "manifest"
        if not (is_manifest and harm is Path.unlink):
            assert checked.code == 1, (path, checked.out)
            assert (path.parent.name if is_manifest else path.name) in checked.out
            assert is_manifest or f"; needed by backup {backup['id']}\n" in checked.out
        quick = run_here("backup", "verify", stored, "--quick")
        if is_manifest and harm is Path.unlink:
            assert (quick.code, "has no backup" in quick.err) == (2, True)
        else:
            assert quick.code == (0 if harm is damage and not is_manifest else 1)
        if harm is damage and not is_manifest:
            target = stored.parent / f"damaged-{path.name}"
            refused = run_here("backup", "restore", stored, target)
            assert (refused.code, "damaged" in refused.err) == (2, True), refused.err
            assert run_here("serve", "--data-dir", target).code != 0
        path.write_bytes(content)
    assert run_here("backup", "verify", stored).code == 0


def test_a_killed_create_leaves_no_backup_and_the_next_one_continues(tmp_path: Path) -> None:
    rng = Random(seed_of_this_run())
    (tmp_path / "store").mkdir()
    with WholeServer(tmp_path, *SMALL, shards=2) as running:
        api = TopicClient(running.port)
        for name in (name_on(0, 2, "a"), name_on(1, 2, "a")):
            for _ in range(30):
                api.append(name, *[{"data": "z" * 3000} for _ in range(100)])
        arguments = ("backup", "create", tmp_path / "data", "--to", tmp_path / "store", "--limit-rate=8MiB")
        for _ in range(6):
            with subprocess.Popen(command_line(*arguments), env=environment()) as process:
                time.sleep(rng.uniform(0.5, 3.0))
                process.send_signal(rng.choice((signal.SIGKILL, signal.SIGINT)))
        rows = ask(api).rows
        create(tmp_path / "data", tmp_path / "store")
        running.kill()
    assert run_here("backup", "verify", tmp_path / "store").code == 0
    restore(tmp_path / "store", tmp_path / "restored" / "data")
    with WholeServer(tmp_path / "restored", shards=2) as running:
        assert ask(TopicClient(running.port)).rows == rows


def test_an_interrupted_restore_does_not_start_and_continues(stored: Path, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    for seconds in (0.3, 0.6, 0.9):
        with subprocess.Popen(
            command_line("backup", "restore", stored, target), env=environment()
        ) as process:
            time.sleep(seconds)
            process.kill()
        if (target / "RESTORING").exists() and not (target / "LAYOUT.json").exists():
            refused = run_command("serve", "--data-dir", target, "--port=0")
            assert (refused.code, "restore" in refused.err) == (1, True), refused.err
    if not (target / "LAYOUT.json").exists():
        restore(stored, target)
    again = run_here("backup", "restore", stored, target)
    assert (again.code, "not empty" in again.err) == (2, True)


def test_a_prune_keeps_what_a_kept_backup_names(stored: Path) -> None:
    data = stored.parent / "data"
    create(data, stored)
    create(data, stored)
    assert run_here("backup", "prune", stored, "--keep=0").code == 2
    pruned = run_here("backup", "prune", stored, "--keep=1", "--json").json
    assert len(pruned["backups"]) == 2
    assert len(run_here("backup", "list", stored, "--json").json["backups"]) == 1
    assert run_here("backup", "verify", stored).code == 0


def test_a_prune_deletes_old_objects_that_no_kept_backup_names(stored: Path) -> None:
    unnamed = stored / "blobs" / "00" / "unnamed-1"
    unnamed.parent.mkdir(parents=True, exist_ok=True)
    unnamed.write_bytes(b"1")
    fresh = stored / "blobs" / "00" / "fresh-1"
    fresh.write_bytes(b"1")
    two_days_ago = time.time() - 2 * 86_400
    for path in stored.rglob("blobs/*/*"):
        if path != fresh:
            os.utime(path, (two_days_ago, two_days_ago))
    assert run_here("backup", "prune", stored, "--keep=1", "--dry-run", "--json").json["objects"] == 1
    assert unnamed.exists()
    assert run_here("backup", "prune", stored, "--keep=1", "--json").json["objects"] == 1
    assert not unnamed.exists()
    assert fresh.exists()
    assert run_here("backup", "verify", stored).code == 0


def test_a_prune_beside_a_create_deletes_no_object(stored: Path) -> None:
    (stored / "blobs" / "creating").mkdir(exist_ok=True)
    (stored / "blobs" / "creating" / "another").write_bytes(b"another")
    pruned = run_here("backup", "prune", stored, "--keep=1", "--json").json
    assert pruned["is_create_running"]
    assert pruned["objects"] == 0


def test_a_create_beside_a_prune_is_refused(stored: Path) -> None:
    (stored / "blobs" / "pruning").mkdir(exist_ok=True)
    (stored / "blobs" / "pruning" / "another").write_bytes(b"another")
    refused = run_here("backup", "create", stored.parent / "data", "--to", stored)
    assert (refused.code, "a prune is running" in refused.err) == (2, True)


def test_a_hanging_worker_ends_the_attempt_and_no_write_waits(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with WholeServer(tmp_path, shards=2) as running, closing(running.a_worker(1)) as worker:
        worker.signal(signal.SIGSTOP)
        try:
            refused = run_here("backup", "create", tmp_path / "data", "--to", tmp_path / "store")
            assert (refused.code, "shard 1" in refused.err) == (2, True), refused.err
            TopicClient(running.port).append(name_on(0, 2, "a"), {"data": 1})
        finally:
            worker.signal(signal.SIGCONT)
        TopicClient(running.port).append(name_on(1, 2, "a"), {"data": 1})
        create(tmp_path / "data", tmp_path / "store")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_topic_is_restored_under_another_name_into_the_running_server(tmp_path: Path, shards: int) -> None:
    with WholeServer(tmp_path, *SMALL, shards=shards) as running:
        api = TopicClient(running.port)
        for number in range(7):
            records = [{"data": [number, index, "x" * 500], "tag": f"t{index % 3}"} for index in range(100)]
            api.append("orders", *records)
        api.call("orders", "delete", match=["tag", "Eq", "t1"])
        api.ask("PUT", "topics/jobs", {"type": "queue"})
        api.append("jobs", *[{"data": index} for index in range(20)])
        assert len(api.claim("jobs", 3)) == 3
        api.ask("PUT", "topics/orders/cursors/mine", {"after_seq": 60})
        time.sleep(1)
        api.append("orders", {"data": "in the log only"})
        orders, jobs = api.rows("orders"), api.rows("jobs")
        create(tmp_path / "data", tmp_path / "store")
        api.append("orders", {"data": "after the backup"})
        new = [f"orders{number}" for number in range(4)]
        flags = [f"--topic=orders={name}" for name in new]
        run = run_here(
            "backup", "restore", tmp_path / "store", tmp_path / "data", *flags, "--topic=jobs=jobs2"
        )
        assert run.code == 0, run.err
        for restart in (False, True):
            if restart:
                running.kill()
                running.start()
                api = TopicClient(running.port)
            for name in new:
                assert api.rows(name)[: len(orders)] == orders
                assert api.state(name)["head_seq"] >= 701
            assert api.rows("jobs2") == jobs
            assert api.ask("GET", "topics/orders0/cursors/mine")["from_seq"] == 60
            assert api.append("orders0", {"data": "continued"})
        assert len(api.claim("jobs2", 100)) == 20
        again = run_here("backup", "restore", tmp_path / "store", tmp_path / "data", "--topic=orders=orders0")
        assert (again.code, "orders0" in again.err) == (2, True), again.err
        missing = run_here("backup", "restore", tmp_path / "store", tmp_path / "data", "--topic=zzz=orders9")
        assert (missing.code, 'no topic "zzz"' in missing.err) == (2, True), missing.err
        assert not list((tmp_path / "data").glob("shards/*/incoming/*"))
        running.stop()
    checked = run_here("verify", tmp_path / "data")
    assert (checked.code, "WRONG" in checked.out) == (0, False), checked.out


def test_a_store_without_a_backup_is_never_fine(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for action in (["list", missing], ["verify", missing], ["prune", missing, "--keep", "1"]):
        ran = run_here("backup", *action)
        assert (ran.code, ran.err) == (
            2,
            f"topicsd: {missing}: no such directory; create it, or mount its disk\n",
        )
    ran = run_here("backup", "verify", empty)
    assert (ran.code, ran.err) == (2, f"topicsd: file://{empty} has no backup\n")
    ran = run_here("backup", "list", empty)
    assert (ran.code, ran.out) == (0, "no backups\n")
