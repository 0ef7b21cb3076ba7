"""`topicsd reshard` on the directory of everything, with servers before and after it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shared.ipc.placement import Placement
from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import CommandResult, command_line, environment, fingerprint, run_here
from tests.harness.server.everything import Everything, Said, ask, server
from tests.harness.server.everything_fill import KEY, records
from tests.harness.server.processes import log_file
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import shard_paths
from topicsd.disk.placement_file import read_placement
from topicsd.engine.checkpoint.manifest import read_manifest

SECONDS = 60.0


@pytest.fixture(scope="module")
def rested(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """Return a copy after a clean stop, with what its server said when its routes were idle."""
    copy = everything.copied(tmp_path_factory.mktemp("rested"))
    with server(copy.folder) as running:
        api = TopicClient(running.port, KEY)
        said = ask(api)
        deadline = time.monotonic() + SECONDS
        while (states := settled_states(api)) != {name: stable(one) for name, one in said.states.items()}:
            assert time.monotonic() < deadline, "routes end"
            said = said._replace(states=states)
        said = ask(api)
        assert running.stop() == 0
    return copy._replace(said=said)


def settled_states(api: TopicClient) -> dict[str, Any]:
    """Return the states after a while in which routes copy lost ranges."""
    time.sleep(2.0)
    return {name: stable(state) for name, state in ask(api).states.items()}


@pytest.fixture
def copy(rested: Everything, tmp_path: Path) -> Everything:
    return rested.copied(tmp_path)


def run_reshard(copy: Everything, shards: int, *more: str) -> CommandResult:
    return run_here("reshard", copy.data, "--shards", shards, "--cold-dir", copy.cold, *more)


def served(copy: Everything) -> Said:
    with server(copy.folder) as running:
        said = ask(TopicClient(running.port, KEY))
        running.stop()
    return said


def same_said(after: Said, before: Said) -> None:
    assert after.states.keys() == before.states.keys()
    for name, state in before.states.items():
        assert stable(after.states[name]) == stable(state), name
        if state["config"]["durability"] != "ephemeral":
            assert after.rows[name] == before.rows[name], name
    assert without_lag_age(after.cursors) == without_lag_age(before.cursors)
    assert sorted(map(str, after.routes)) == sorted(map(str, before.routes))


def stable(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without its shard and the times that pass."""
    passing = ("shard", "performance", "last_read_ts", "effective_priority")
    kept = {name: value for name, value in state.items() if name not in passing}
    queue = kept.get("queue")
    if queue is not None:
        kept["queue"] = {name: value for name, value in queue.items() if not name.endswith(("_ms", "_age"))}
    return kept


def without_lag_age(cursors: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{field: one[field] for field in one if field != "lag_ms"} for one in listed]
        for name, listed in cursors.items()
    }


def check_directory(copy: Everything, shards: int) -> None:
    """Check that the directory is in order, and that no file of before is left."""
    files = ["KEYS.json", "LAYOUT.json", "LOCK", "PLACEMENT.json", "shards"]
    assert sorted(os.listdir(copy.data)) == files
    assert sorted(os.listdir(copy.data / "shards")) == [f"{number:02d}" for number in range(shards)]
    assert sorted(os.listdir(copy.cold)) == ["probe", "segments"]
    for name, *flags in (("verify",), ("doctor",), ("inspect",), ("inspect", "--checkpoint")):
        ran = run_here(name, copy.data, "--cold-dir", copy.cold, *flags)
        assert (ran.code, ran.err) == (0, ""), ran.out[-2000:]
        assert "WRONG" not in ran.out


DEPARTED_WITH_FILES = 1
"""Topics of the directory that no server serves, and that a reshard keeps."""


def test_a_server_serves_the_same_after_each_reshard(copy: Everything) -> None:
    for shards in (5, 3, 1):
        ran = run_reshard(copy, shards, "--json")
        assert ran.code == 0, ran.err
        assert ran.json["shards"] == shards
        assert ran.json["topics"] == len(copy.said.states) + DEPARTED_WITH_FILES
        assert ran.json["links"] > 0
        assert ran.json["copies"] == 0
        check_directory(copy, shards)
        same_said(served(copy), copy.said)


def test_writes_continue_after_a_reshard(copy: Everything) -> None:
    names = copy.second
    assert run_reshard(copy, 5).code == 0
    with server(copy.folder) as running:
        api = TopicClient(running.port, KEY)
        before = len(api.rows(names.plain)), len(api.rows(names.across))
        api.append(names.plain, *records(3), idempotency_key="b-once")
        api.append(names.fsync, *records(2), producer={"id": "job-7", "seq": 12})
        assert len(api.rows(names.plain)) == before[0]
        assert api.rows(names.fsync) == copy.said.rows[names.fsync]
        api.append(names.plain, *records(4, "k"))
        api.wait_for_rows(names.plain, before[0] + 4)
        api.wait_for_rows(names.across, before[1] + 4)
        assert api.claim(names.leased, 1) != [], "a released job"
        api.call(names.leased, "ack", node="worker", seqs=[5])
        running.kill()
    with server(copy.folder) as running:
        assert len(TopicClient(running.port, KEY).rows(names.plain)) == before[0] + 4
        running.stop()
    assert run_reshard(copy, 2).code == 0
    check_directory(copy, 2)


def test_a_killed_reshard_is_finished_or_undone(copy: Everything) -> None:
    rng = Random(7)
    current = 2
    for shards in (5, 3, 1, 4, 2):
        for _ in range(3):
            command = command_line("reshard", copy.data, "--shards", shards, "--cold-dir", copy.cold)
            process = subprocess.Popen(
                command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.uniform(0.4, 1.1))
            process.send_signal(signal.SIGKILL)
            process.wait(SECONDS)
        if rng.random() < 0.5:
            same_said(served(copy), copy.said)
        ran = run_reshard(copy, shards)
        assert ran.code == 0, ran.err
        check_directory(copy, shards)
        current = shards
    assert current == 2
    same_said(served(copy), copy.said)


def test_an_interrupted_reshard_undoes_what_it_built(copy: Everything) -> None:
    command = command_line("reshard", copy.data, "--shards", 5, "--cold-dir", copy.cold)
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "at rest" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    shards = 2 if process.returncode == 130 else 5
    assert (process.returncode, "interrupted" in err) == ((130, True) if shards == 2 else (0, False))
    check_directory(copy, shards)


def test_leftovers_are_named_and_a_start_removes_them(copy: Everything) -> None:
    shutil.copytree(copy.data / "shards", copy.data / "reshard.new" / "shards")
    ran = run_here("verify", copy.data, "--cold-dir", copy.cold)
    assert ran.code == 0
    assert "reshard.new: left by an interrupted reshard" in ran.out
    same_said(served(copy), copy.said)
    assert (
        "an interrupted reshard was undone; the directory has 2 shards" in log_file(copy.folder).read_text()
    )
    check_directory(copy, 2)


def test_a_plan_writes_nothing(copy: Everything) -> None:
    before = fingerprint(copy.folder)
    ran = run_reshard(copy, 5, "--dry-run", "--json")
    assert fingerprint(copy.folder) == before
    assert ran.json["is_plan"] is True
    assert ran.json["topics"] == len(copy.said.states) + DEPARTED_WITH_FILES
    done = run_reshard(copy, 5, "--json").json
    assert ran.json["moved_topics"] == done["moved_topics"] > 0
    text = run_reshard(copy, 3, "--dry-run").out
    assert "5 shards to 3 shards: plan, nothing was changed" in text


def test_a_running_server_refuses_a_reshard(copy: Everything) -> None:
    with server(copy.folder) as running:
        ran = run_reshard(copy, 5)
        assert ran.code == 2
        assert "stop the server first" in ran.err
        running.stop()
    same_said(served(copy), copy.said)


@pytest.mark.parametrize("shards", [0, 1025, -1])
def test_an_impossible_number_of_shards_is_refused(copy: Everything, shards: int) -> None:
    before = fingerprint(copy.folder)
    ran = run_reshard(copy, shards)
    assert ran.code != 0
    assert f"--shards: must be 1 to 1024, got {shards}" in ran.err
    assert fingerprint(copy.folder) == before


def test_the_object_store_is_not_needed(copy: Everything, tmp_path: Path) -> None:
    """Nothing changes in it, and the new manifests name the store that the old ones named."""
    before = fingerprint(copy.cold / "segments")
    (url,) = store_urls(copy, 2)
    away = copy.cold.rename(tmp_path / "away")
    ran = run_here("reshard", copy.data, "--shards", 5)
    assert (ran.code, copy.cold.exists()) == (0, False), ran.err
    away.rename(copy.cold)
    assert fingerprint(copy.cold / "segments") == before
    assert store_urls(copy, 5) == {url}
    check_directory(copy, 5)
    same_said(served(copy), copy.said)


def store_urls(copy: Everything, shards: int) -> set[str]:
    """Return the stores that the manifests name."""
    return {read_manifest(RealFs(), shard_paths(str(copy.data), one)).store_url for one in range(shards)}


def test_a_pinned_topic_stays_on_its_shard_while_there_is_one(copy: Everything) -> None:
    pinned = copy.second.plain
    shard = 1 - Placement(2).owner_of(pinned)
    with server(copy.folder) as running:
        api = TopicClient(running.port, KEY)
        assert api.call(pinned, "move", shard=shard)["moved"]
        running.stop()
    assert f'topic "{pinned}" has shard {shard}' in run_here("inspect", copy.data).out
    for shards, is_pinned in ((5, True), (3, True), (1, False), (2, False)):
        ran = run_reshard(copy, shards)
        assert ran.code == 0, ran.err
        assert ("no exceptions any more: " in ran.out) == (shards == 1)
        assert (f'"{pinned}"' in ran.out) == (shards == 1)
        placement = read_placement(RealFs(), str(copy.data), shards)
        moved = {pinned: shard, copy.first.moved: 1}
        assert placement.exceptions == (moved if is_pinned else {})
        same_said(served(copy), copy.said)


def test_a_directory_that_is_none_is_left_alone(tmp_path: Path) -> None:
    ran = run_here("reshard", tmp_path, "--shards", 3)
    assert ran.code == 2
    assert "is not a data directory" in ran.err
    assert os.listdir(tmp_path) == []


def test_the_same_number_changes_nothing(copy: Everything) -> None:
    ran = run_reshard(copy, 2)
    assert ran.code == 0
    assert "2 shards; nothing to change" in ran.out


def test_a_server_with_another_number_names_the_command(copy: Everything) -> None:
    assert run_reshard(copy, 3).code == 0
    served(copy)
    assert f"topicsd reshard {copy.data} --shards 2" in log_file(copy.folder).read_text()


def test_a_lost_layout_is_rebuilt_from_moved_segments_alone(copy: Everything) -> None:
    """Segments name the shard that wrote them, which is not evidence of the shard that has them."""
    assert run_reshard(copy, 5).code == 0
    os.unlink(copy.data / "LAYOUT.json")
    for number in range(5):
        shutil.rmtree(copy.data / "shards" / f"{number:02d}" / "wal")
        shutil.rmtree(copy.data / "shards" / f"{number:02d}" / "meta")
    ran = run_here("doctor", copy.data, "--cold-dir", copy.cold)
    assert "contains files of shard" not in ran.out + ran.err
    assert (
        "write LAYOUT.json for 5 shards"
        in run_here("doctor", copy.data, "--cold-dir", copy.cold, "--repair").out
    )
