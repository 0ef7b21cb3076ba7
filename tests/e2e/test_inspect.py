"""`topicsd inspect` on directories in every state predicts the result of a start."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.contract.topic_config import TopicConfig
from tests.harness.output.command_run import fingerprint, run_command, run_here
from tests.harness.shard.data_dirs import DIRECTORIES, being_used, flip, stop
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.shard.wal_bytes import WalBytes
from topicsd.log.control_frame import TopicCreate, encode_control
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog


def inspected(path: Path, *more: object) -> Any:
    ran = run_here("inspect", path, "--json", *more)
    assert ran.err == ""
    return ran.json


def only_shard(path: Path) -> Any:
    (shard,) = inspected(path)["shards"]
    return shard


def topics(shard: Any) -> dict[str, Any]:
    return {topic["topic"]: topic for topic in shard["topics"]}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_start_does_what_inspect_predicts(tmp_path: Path, name: str) -> None:
    real = DIRECTORIES[name](tmp_path)
    shard = inspected(tmp_path)["shards"][0]
    if not shard["starts"]:
        with pytest.raises((RecoveryRefused, UnreadableLog)) as refused:
            real.reopen()
        assert str(shard["files"][0]["used_bytes"]) in str(refused.value)
        return
    real.reopen()
    assert real.shard.topic_names() == sorted(topics(shard))
    for topic, foretold in topics(shard).items():
        state = real.state(topic)
        assert state.epoch == foretold["epoch"]
        assert state.head_seq == foretold["after_restart"]["head_seq"]
        if foretold["head_seq"] is not None:
            assert (state.count, state.bytes) == (foretold["count"], foretold["bytes"])
            assert state.evict_floor == foretold["evict_floor"]
        lost = foretold["after_restart"]["lost"]
        reported = [(gap.first, gap.last, gap.reason) for gap in real.topic(topic).lost.ranges]
        before = [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in foretold["lost_ranges"]]
        new = [] if lost is None or foretold["head_seq"] is None else [tuple(lost.values())]
        assert reported == before + new


@pytest.mark.parametrize("name", DIRECTORIES)
def test_nothing_in_the_directory_is_changed(tmp_path: Path, name: str) -> None:
    DIRECTORIES[name](tmp_path)
    before = fingerprint(tmp_path)
    for more in ((), ("--json",), ("--frames",), ("--frames", "--json"), ("--topic", "orders")):
        run_here("inspect", tmp_path, *more)
    run_here("verify", tmp_path)
    run_here("verify", tmp_path, "--json")
    assert fingerprint(tmp_path) == before


ENDS = {
    "clean": ("clean", True, "stopped cleanly"),
    "killed": ("process_died", True, "the process died or was killed; the machine has not restarted"),
    "rebooted": ("machine_restarted", False, "the machine restarted"),
    "copied": ("moved", False, "these files are copies"),
    "sync_failed": ("sync_failed", False, "a sync failed"),
    "without_current": ("unknown", False, "CURRENT is missing"),
    "with_a_damaged_current": ("unknown", False, "CURRENT is damaged"),
    "untouched": ("never_written", True, "nothing was written yet"),
    "of_many_files": ("clean", True, "stopped cleanly"),
}


@pytest.mark.parametrize(("name", "code", "exact", "said"), [(name, *end) for name, end in ENDS.items()])
def test_the_end_of_the_last_run_is_reported(
    tmp_path: Path, name: str, code: str, exact: bool, said: str
) -> None:
    DIRECTORIES[name](tmp_path)
    shard = only_shard(tmp_path)
    assert (shard["last_run"], shard["heads_exact"]) == (code, exact)
    assert said in shard["last_run_means"]
    assert said in joined(run_here("inspect", tmp_path).out)


def joined(text: str) -> str:
    """Return a wrapped text as one line."""
    return " ".join(text.split())


WRONG = {"damaged", "without_current", "with_a_damaged_current", "cut_from_outside"}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_the_exit_code_reports_problems(tmp_path: Path, name: str) -> None:
    DIRECTORIES[name](tmp_path)
    text = run_here("inspect", tmp_path)
    assert text.code == run_here("inspect", tmp_path, "--json").code == (1 if name in WRONG else 0)
    assert ("WRONG" in text.out) == (name in WRONG)
    assert text.err == ""


def test_the_facts_of_a_clean_directory(tmp_path: Path) -> None:
    real = DIRECTORIES["clean"](tmp_path)
    report = inspected(tmp_path)
    assert (report["format"], report["shard_count"]) == (1, 1)
    assert bytes.fromhex(report["instance"]) == real.identity.instance
    (shard,) = report["shards"]
    assert shard["in_use_by"] is None
    (file,) = shard["files"]
    assert file["name"] == "wal-0000000000000001.log"
    assert file["first_ordinal"] == 1
    assert file["last_ordinal"] == file["batches"] + file["frames"]
    assert file["size_bytes"] == 1 << 16
    assert file["synced_offset"] == file["used_bytes"]
    assert file["remains_bytes"] == 0
    by_name = topics(shard)
    assert list(by_name) == ["audit", "live", "orders"]
    orders, audit, live = by_name["orders"], by_name["audit"], by_name["live"]
    assert orders["topic_id"] == f"{topic_id('orders'):016x}"
    assert (orders["head_seq"], orders["durable_seq"], orders["earliest_seq"]) == (3, 3, 2)
    assert (orders["evict_floor"], orders["count"], orders["ceiling"]) == (1, 2, 3)
    assert orders["config_not_default"] == {}
    assert audit["config_not_default"] == {"durability": "fsync", "cap_records": 2}
    assert (audit["evict_floor"], audit["evicted_to"]) == (2, {"cap": 1})
    assert (live["head_seq"], live["count"], live["durable_seq"]) == (None, None, 0)
    assert live["after_restart"] == {"head_seq": 1, "lost": {"gap_from": 1, "gap_to": 1, "reason": "crash"}}
    assert shard["idempotency_keys"] == 0, "its window has passed"


def test_text_and_json_hold_the_same_facts(tmp_path: Path) -> None:
    DIRECTORIES["rebooted"](tmp_path)
    shard, text = only_shard(tmp_path), run_here("inspect", tmp_path).out
    for topic in shard["topics"]:
        (row,) = re.findall(rf"^  {topic['topic']} +{topic['durability']} .*$", text, re.MULTILINE)
        cells = row.split()
        if topic["head_seq"] is not None:
            assert cells[2:6] == [
                str(topic[field]) for field in ("head_seq", "earliest_seq", "evict_floor", "durable_seq")
            ]
    (lost,) = [topic for topic in shard["topics"] if topic["topic"] == "orders"]
    head, gap = lost["after_restart"]["head_seq"], lost["after_restart"]["lost"]
    assert head == gap["gap_to"] == lost["ceiling"]
    assert (
        f'topic "orders" WOULD RESUME at {head} and report seqs {gap["gap_from"]} to {head} (crash) as lost'
        in text
    )
    assert "NOT EXACT" in text


def test_a_shard_that_cannot_start_says_nothing_about_its_next_start(tmp_path: Path) -> None:
    shard = DIRECTORIES["rebooted"](tmp_path)
    assert "WOULD RESUME" in run_here("inspect", tmp_path).out
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    synced_end = max(row["control"]["synced"] for row in rows if row["type"] == "batch_end")
    flip(shard.wal_files()[0], synced_end - 1)
    text = run_here("inspect", tmp_path).out
    assert "unknown: the shard cannot start until it is repaired" in text
    assert re.search(r"^  orders +disk ", text, re.MULTILINE)
    assert "WOULD RESUME" not in text
    assert "after a start" not in text


# Numbers that the engine may change are `n`; words and columns are fixed.
CLEAN_TEXT = """\
topics-data: format 1, 1 shard, instance 6f6e652d73686172642d2d2d2d2d2d2d

shard 00 topics-data/shards/00
last run stopped cleanly: the whole log was synced
heads exact: a start resumes where the log ends
log 1 file, n batches, n frames, n KiB; ends here

FILE SIZE USED ORDINALS BATCHES FRAMES SYNCED TO MADE END
wal-0000000000000001.log 64 KiB n KiB 1-n n n n 2023-11-14T22:13:20.000Z ends here

TOPIC CLASS HEAD EARLIEST FLOOR DURABLE RECORDS BYTES CEILING LAST WRITE
audit fsync 3 2 2 3 2 94 B - 2023-11-14T22:13:20.000Z
live ephemeral - - - 0 - - 1 2023-11-14T22:13:20.000Z
orders disk 3 2 1 3 2 110 B 3 2023-11-14T22:13:20.000Z

topic "audit" lost records up to seq 1 by cap
topic "live" is in memory only: after a start its head is 1 and it has no records

An outdated copy cannot be detected: a copy of a data directory that lacks what its original wrote
later looks complete.
"""


def test_the_text_for_a_clean_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DIRECTORIES["clean"](Path("topics-data"))
    lines = [" ".join(line.split()) for line in run_here("inspect", "topics-data").out.splitlines()]
    free = re.compile(r"(?<=file, )\d+(?= b)|\d+(?= frames)|[\d.]+(?= KiB;)|(?<=64 KiB )[\d.]+")
    lines = [free.sub("n", line) for line in lines]
    lines = [re.sub(r" 1-\d+ \d+ \d+ \d+ ", " 1-n n n n ", line) for line in lines]
    assert joined("\n".join(lines)) == joined(CLEAN_TEXT)


def test_one_topic_in_detail(tmp_path: Path) -> None:
    DIRECTORIES["lost_range"](tmp_path)
    ran = run_here("inspect", tmp_path, "--topic", "orders")
    assert ran.code == 0
    text = joined(ran.out)
    for said in (
        'topic "orders" shard 00',
        f"id {topic_id('orders'):016x}, epoch 1 ",
        "class disk",
        "durable every record is known to be on the disk",
        "lost seqs 4 to ",
        "config all defaults",
    ):
        assert said in text
    report = run_here("inspect", tmp_path, "--topic", "orders", "--json").json
    assert (report["shard"], report["starts"], report["problems"]) == (0, True, [])
    assert report["topic"] == topics(only_shard(tmp_path))["orders"]


def test_a_topic_reports_seqs_that_a_restart_would_lose(tmp_path: Path) -> None:
    DIRECTORIES["rebooted"](tmp_path)
    text = joined(run_here("inspect", tmp_path, "--topic", "orders").out)
    sentence = r"the head would be (\d+), its ceiling, and seqs 4 to \1 \(crash\) would be reported as lost"
    assert re.search(sentence, text)
    text = joined(run_here("inspect", tmp_path, "--topic", "audit").out)
    assert "restart the head would be 3, and nothing would be reported lost" in text
    assert "floor 2: records were lost up to 1 by cap" in text
    assert 'config cap_records=2, durability="fsync"' in text
    text = joined(run_here("inspect", tmp_path, "--topic", "live").out)
    assert "its records are in memory only" in text


def test_records_older_than_the_ttl_count_as_evicted(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.put("short", ttl_ms=1000)
    shard.append("short", 1, 2)
    stop(shard)
    (topic,) = only_shard(tmp_path)["topics"]
    assert (topic["count"], topic["evict_floor"], topic["evicted_to"]) == (0, 3, {"ttl": 2})


def test_a_topic_is_searched_in_its_own_shard_first(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    names = [f"topic-{number}" for number in range(12)]
    shards = [run_here("inspect", tmp_path, "--topic", name, "--json").json for name in names]
    assert {report["shard"] for report in shards} == {0, 1, 2}
    assert [report["topic"]["head_seq"] for report in shards] == list(range(1, 13))
    owner = shards[3]["shard"]
    elsewhere = RealShard(tmp_path, shard=(owner + 1) % 3)
    elsewhere.append("topic-99", 1)
    elsewhere.append("topic-3x", 1)
    stop(elsewhere)
    for name in ("topic-99", "topic-3x"):
        assert run_here("inspect", tmp_path, "--topic", name, "--json").json["shard"] == (owner + 1) % 3


def test_one_shard_of_many(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    (shard,) = inspected(tmp_path, "--shard", 2)["shards"]
    assert shard["shard"] == 2
    refused = run_here("inspect", tmp_path, "--shard", 3)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"topicsd: --shard: must be 0 to 2 for {tmp_path}, got 3\n"


def test_damage_in_one_shard_leaves_the_others_readable(tmp_path: Path) -> None:
    real = DIRECTORIES["of_many_shards"](tmp_path)
    flip(real.wal_files()[0], 200)
    report = inspected(tmp_path)
    assert [shard["starts"] for shard in report["shards"]] == [False, True, True]
    assert [bool(shard["topics"]) for shard in report["shards"]] == [False, True, True]
    assert report["shards"][0]["problems"][0].startswith(
        "wal-0000000000000001.log is damaged at offset 118, "
    )


def test_wal_files_are_listed_in_order(tmp_path: Path) -> None:
    DIRECTORIES["of_many_files"](tmp_path)
    files = only_shard(tmp_path)["files"]
    assert len(files) > 2
    for file, following in pairwise(files):
        assert file["last_ordinal"] + 1 == following["first_ordinal"]
        assert file["end"] == "continues in the next file"
        assert file["synced_offset"] == file["used_bytes"]
    assert files[-1]["end"] == "ends here"


def test_quarantined_and_leftover_files_are_shown(tmp_path: Path) -> None:
    DIRECTORIES["torn_and_gone_on"](tmp_path / "torn")
    shard = only_shard(tmp_path / "torn")
    (kept,) = shard["quarantine"]
    assert kept["size_bytes"] == os.stat(tmp_path / "torn/shards/00/quarantine" / kept["name"]).st_size
    assert shard["files"][0]["remains_bytes"] == kept["size_bytes"]
    assert "QUARANTINE" in run_here("inspect", tmp_path / "torn").out
    DIRECTORIES["killed_with_a_spare"](tmp_path / "spare")
    shard = only_shard(tmp_path / "spare")
    (name,) = shard["leftovers"]
    assert f"{name} is left over from an unclean stop" in shard["notes"][0]


def test_a_torn_tail_is_reported(tmp_path: Path) -> None:
    DIRECTORIES["torn"](tmp_path)
    shard = only_shard(tmp_path)
    (file,) = shard["files"]
    torn = f"{file['remains_bytes']} bytes at offset {file['used_bytes']} of {file['name']}"
    assert shard["notes"] == [
        f"torn tail: {torn} are not a whole batch. No write in it was acknowledged as synced; a start moves "
        "it to quarantine and continues before it"
    ]
    assert file["end"] == f"torn tail of {file['remains_bytes']} B at {file['used_bytes']}"


def test_a_running_server_is_reported(tmp_path: Path) -> None:
    shard = being_used(tmp_path)
    report = only_shard(tmp_path)
    assert (report["last_run"], report["in_use_by"], report["heads_exact"]) == ("in_use", os.getpid(), True)
    assert f"process {os.getpid()} holds the shard" in run_here("inspect", tmp_path).out
    stop(shard)
    assert only_shard(tmp_path)["in_use_by"] is None


def test_a_torn_tail_beside_a_running_server_is_a_batch_in_flight(tmp_path: Path) -> None:
    shard = being_used(tmp_path)
    flip(shard.wal_files()[-1], shard.shard.log.batch.next_position + 118 - 1)
    report = only_shard(tmp_path)
    assert report["problems"] == []
    assert report["notes"][0].startswith(
        "the log is being written: read up to its last whole batch, which ends at"
    )
    shard.stop_dead()
    assert only_shard(tmp_path)["notes"][0].startswith("torn tail")


def test_whole_batches_after_a_tear_are_damage_even_beside_a_running_server(tmp_path: Path) -> None:
    shard = being_used(tmp_path)
    shard.append("orders", 4)
    shard.append("orders", 5)
    _, offset = shard.shard._files.place_of(shard.topic("orders").run.frame_positions[3])
    flip(shard.wal_files()[0], offset + 40)
    report = only_shard(tmp_path)
    assert (report["end"], report["heads_exact"]) == ("torn tail", False)
    shard.stop_dead()


def test_control_characters_in_a_name_are_escaped(tmp_path: Path) -> None:
    evil = "a\x1b[2Jb"
    wal = WalBytes()
    frame = encode_control(TopicCreate(evil, TopicConfig(), 1), topic_id=topic_id(evil), ts=0)
    wal.batch(frame)
    stop(RealShard(tmp_path))
    path = Path(tmp_path / "shards/00/wal" / "wal-0000000000000001.log")
    path.write_bytes(wal.padded())
    for more in ((), ("--frames",), ("--topic", evil)):
        out = run_here("inspect", tmp_path, *more).out
        assert "\x1b" not in out
        assert r"a\x1b[2Jb" in out
    assert topics(only_shard(tmp_path))[evil]["head_seq"] == 0


@pytest.mark.slow
def test_records_with_any_text_can_be_listed(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.append("orders", record(1, tag="\x1b[31mrot\u202e", node="café"))
    stop(shard)
    ran = run_command("inspect", tmp_path, "--frames", "--topic", "orders")
    assert ran.code == 0
    assert r'tag="\x1b[31mrot\u202e" node="café"' in ran.out
    rows = run_command("inspect", tmp_path, "--frames", "--topic", "orders", "--json").json_lines
    assert rows[1]["tag"] == "\x1b[31mrot\u202e"
