"""What a backup holds besides records, the stores that it reads, and commands that are killed half-way."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from shared.contract.names import topic_id
from tests.e2e.test_backup import SMALL, create, restore
from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import command_line, environment, run_here
from tests.harness.server.whole_server import WholeServer, name_on
from tests.harness.shard.one_shard import RealShard
from topicsd.disk.layout import BUNDLE_NAME, topic_dir_name
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS

NUMBERED = {"producer": {"id": "p", "seq": 1}}


def test_keys_producers_leases_and_watch_sessions_are_restored(tmp_path: Path) -> None:
    with WholeServer(tmp_path, *SMALL, shards=2) as running:
        api = TopicClient(running.port)
        keyed = [
            api.append("a", {"data": number}, idempotency_key=f"k{number}")["last_seq"]
            for number in range(30)
        ]
        numbered = api.append("b", {"data": "numbered"}, **NUMBERED)["last_seq"]
        api.put("jobs", type="queue", leases_durable=True)
        api.append("jobs", *[{"data": number} for number in range(10)])
        leased = api.claim("jobs", 4, lease_ms=600_000)
        session = api.ask("POST", "watch", {"topics": {"a": {"after_seq": 0}}})
        create(tmp_path / "data", tmp_path / "store")
        running.kill()
    restore(tmp_path / "store", tmp_path / "restored" / "data")
    with WholeServer(tmp_path / "restored", shards=2) as running:
        api = TopicClient(running.port)
        again = [
            api.append("a", {"data": number}, idempotency_key=f"k{number}")["last_seq"]
            for number in range(30)
        ]
        assert again == keyed
        assert api.state("a")["head_seq"] == 30
        assert api.append("b", {"data": "numbered"}, **NUMBERED)["last_seq"] == numbered
        assert api.state("b")["head_seq"] == 1
        assert sorted(leased + api.claim("jobs", 100)) == list(range(1, 11))
        stream = running.ask("GET", f"/v0/watch/{session['wid']}?wait_ms=0")
        assert stream.status != 404, stream


def with_exported_segments(folder: Path) -> list[dict[str, Any]]:
    """Make a directory of one shard whose oldest `.data` files are only in the store; return its rows."""
    (folder / "cold").mkdir()
    shard = RealShard(
        folder / "data", cold_dir=str(folder / "cold"), segment_max_events=10, hot_retain_segments=2
    )
    for number in range(95):
        shard.append("t", number)
    for _ in range(6):
        shard.checkpoint()
        shard.pass_time(ROUND_SECONDS * 1000 + 1)
        shard.append("other", 1)
    shard.shard.close()
    exported = {path.name.split("-")[2] for path in (folder / "cold").rglob("*.data")}
    local = {path.name.split("-")[1].removesuffix(".data") for path in (folder / "data").rglob("*.data")}
    assert exported - local
    with WholeServer(folder, f"--cold-dir={folder / 'cold'}", shards=1) as running:
        rows = TopicClient(running.port).rows("t")
        running.kill()
    assert len(rows) == 95
    return rows


def test_a_backup_copies_or_names_what_is_only_in_the_object_store(tmp_path: Path) -> None:
    rows = with_exported_segments(tmp_path)
    cold = f"--cold-dir={tmp_path / 'cold'}"
    whole = create(tmp_path / "data", tmp_path / "store")
    assert create(tmp_path / "data", tmp_path / "store")["uploaded_bytes"] == 0
    named = create(tmp_path / "data", tmp_path / "referring", "--reference-store")
    assert named["file_bytes"] < whole["file_bytes"]
    restore(tmp_path / "store", tmp_path / "restored" / "data")
    referred = run_here("backup", "restore", tmp_path / "referring", tmp_path / "referred" / "data")
    assert referred.code == 0, referred.err
    assert run_here("backup", "verify", tmp_path / "referring").code == 0
    with WholeServer(tmp_path / "referred", cold, shards=1) as running:
        assert TopicClient(running.port).rows("t") == rows
        running.kill()
    with WholeServer(tmp_path / "restored", cold, "--hot-retain-segments=0", shards=1) as running:
        assert TopicClient(running.port).rows("t") == rows
        TopicClient(running.port).delete("t")
        running.stop()
    # The restored server had the same store, and deleted nothing in it that is not its own.
    assert run_here("backup", "verify", tmp_path / "referring").code == 0
    for path in (tmp_path / "cold").rglob("*.data"):
        path.unlink()
    problems = run_here("backup", "verify", tmp_path / "referring")
    assert (problems.code, "refers to it" in problems.out) == (1, True), problems.out
    assert run_here("backup", "verify", tmp_path / "store").code == 0


def test_moved_topics_are_restored_on_the_shard_that_had_them_at_the_point(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with WholeServer(tmp_path, *SMALL, shards=2) as running:
        api = TopicClient(running.port)
        names = [name_on(0, 2, f"m{number}") for number in range(12)]
        for name in names:
            api.append(name, *[{"data": number} for number in range(300)])
        api.ask("POST", f"topics/{names[0]}/move", {"shard": 1})
        # The newest snapshots do not have the topic on its new shard yet, so the log names its bundle.
        create(tmp_path / "data", tmp_path / "store")
        arguments = command_line("backup", "create", tmp_path / "data", "--to", tmp_path / "store")
        with subprocess.Popen(arguments, env=environment()) as process:
            for name in names[1:]:
                api.ask("POST", f"topics/{name}/move", {"shard": 1})
        assert process.returncode == 0
        create(tmp_path / "data", tmp_path / "store")
        rows = {name: api.rows(name) for name in names}
        running.kill()
    for number, one in enumerate(run_here("backup", "list", tmp_path / "store", "--json").json["backups"]):
        target = tmp_path / f"restored{number}"
        restore(tmp_path / "store", target / "data", backup_id=one["id"])
        with WholeServer(target, shards=2) as running:
            assert {name: TopicClient(running.port).rows(name) for name in names} == rows


def test_a_bundle_that_is_not_written_yet_is_left_out_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with WholeServer(tmp_path, shards=1) as running:
        TopicClient(running.port).append("t", {"data": 1})
        running.stop()
    folder = tmp_path / "data" / "shards" / "00" / "topics" / topic_dir_name(topic_id("adopted"), 7)
    folder.mkdir()
    (folder / BUNDLE_NAME).touch()
    create(tmp_path / "data", tmp_path / "store")
    (folder / BUNDLE_NAME).write_bytes(b"\0" * 100)
    refused = run_here("backup", "create", tmp_path / "data", "--to", tmp_path / "store")
    assert (refused.code, BUNDLE_NAME in refused.err) == (2, True), refused.err


def blobs(store: Path) -> list[Path]:
    return [path for path in store.glob("blobs/??/*") if not path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("share", "sign"),
    [(0.0, signal.SIGKILL), (0.1, signal.SIGKILL), (0.7, signal.SIGKILL), (0.5, signal.SIGINT)],
)
def test_a_create_killed_after_a_share_of_its_objects_is_continued(
    tmp_path: Path, share: float, sign: signal.Signals
) -> None:
    store, reference = tmp_path / "store", tmp_path / "reference"
    store.mkdir()
    with WholeServer(tmp_path, *SMALL, "--segment-max-events=2000", shards=2) as running:
        api = TopicClient(running.port)
        for topic in (name_on(0, 2, "a"), name_on(1, 2, "a")):
            for number in range(30):
                # Not to be compressed to one object: every record differs.
                api.append(topic, *[{"data": f"{number}-{index}-" + "z" * 5000} for index in range(100)])
        time.sleep(1)
        rows = {name: api.rows(name) for name in (name_on(0, 2, "a"), name_on(1, 2, "a"))}
        running.stop()
    whole = create(tmp_path / "data", reference)["uploaded_bytes"]
    count = len(blobs(reference))
    assert count >= 8
    arguments = ("backup", "create", tmp_path / "data", "--to", store, "--limit-rate=16MiB")
    with subprocess.Popen(command_line(*arguments), env=environment(), stderr=subprocess.PIPE) as process:
        while not list(store.glob("blobs/creating/*")) or len(blobs(store)) < share * count:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(sign)
        process.wait()
    assert process.returncode == (-sign if sign == signal.SIGKILL else 130)
    assert not list(store.glob("backups/*/manifest"))
    left = sum(path.stat().st_size for path in blobs(store))
    uploaded: Any = create(tmp_path / "data", store)["uploaded_bytes"]
    assert uploaded <= whole - left
    assert run_here("backup", "verify", store).code == 0
    restore(store, tmp_path / "restored" / "data")
    with WholeServer(tmp_path / "restored", shards=2) as running:
        assert {name: TopicClient(running.port).rows(name) for name in rows} == rows


def test_a_server_in_memory_refuses_a_backup_point(tmp_path: Path) -> None:
    with WholeServer(tmp_path, "--memory", shards=2) as running:
        answer = running.ask("POST", "/v0/backup-points")
        assert (answer.status, answer.json["error"]["code"]) == (501, "not_implemented")
