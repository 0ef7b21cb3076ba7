"""`topicsd doctor` with a missing WAL file: the possible loss, and the next seq."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.shard.one_shard import RealShard

RECORDS = 28
AT_MOST = re.compile(
    r'topic "orders": at most ([\d,]+) records after seq 28\. The exact number is unknown, '
    r"and no seq is used twice: its seqs continue at (\d+), and readers get a tombstone for the range"
)

RAISED = re.compile(
    r'head of topic "([^"]+)", which is ephemeral: the log may lack its last ceiling, and no seq is '
    r"used twice, so its seqs continue at (\d+)"
)


def without_its_last_file(path: Path, *, is_clean: bool) -> RealShard:
    """Build a shard with records in segments, and delete its last WAL file."""
    shard = RealShard(path)
    shard.append("orders", *range(RECORDS))
    shard.shard.close()
    shard.reopen()
    shard.append("other", 1)
    if is_clean:
        shard.shard.close()
    else:
        shard.stop_dead()
    os.unlink(shard.wal_files()[-1])
    return shard


def planned(path: Path) -> Any:
    (report,) = run_here("doctor", path, "--repair", "--json").json["shards"]
    return report


@pytest.mark.parametrize(("is_clean", "most"), [(True, 1000), (False, 1 << 15)])
def test_the_possible_loss_is_bounded_by_the_content_of_the_file(
    tmp_path: Path, is_clean: bool, most: int
) -> None:
    shard = without_its_last_file(tmp_path, is_clean=is_clean)
    report = planned(tmp_path)
    assert not report["starts"]
    (said,) = [one for one in report["loses"] if one.startswith('topic "orders"')]
    match = AT_MOST.fullmatch(said)
    assert match is not None, said
    count, next_seq = int(match[1].replace(",", "")), int(match[2])
    assert next_seq == RECORDS + count + 1 <= RECORDS + most + 1
    assert run_here("doctor", tmp_path, "--repair", "--apply").code == 0
    shard.reopen()
    assert shard.append("orders", "next").last_seq >= next_seq


@pytest.mark.parametrize("count", [1, 25])
def test_the_plan_names_the_next_seq_of_ephemeral_topics(tmp_path: Path, count: int) -> None:
    shard = RealShard(tmp_path)
    names = [f"live{number:02}" for number in range(count)]
    for name in names:
        shard.put(name, durability="ephemeral")
        shard.append(name, "a", "b")
    shard.shard.close()
    shard.reopen()
    for name in names:
        shard.append(name, "c")
    shard.shard.close()
    os.unlink(shard.wal_files()[-1])
    loses = planned(tmp_path)["loses"]
    nexts = {match[1]: int(match[2]) for one in loses if (match := RAISED.fullmatch(one))}
    assert list(nexts) == names[:20]
    assert [one for one in loses if one.startswith("heads of")] == (
        [] if count == 1 else ["heads of 5 more ephemeral topics"]
    )
    assert run_here("doctor", tmp_path, "--repair", "--apply").code == 0
    shard.reopen()
    assert {name: shard.append(name, "d").first_seq for name in nexts} == nexts
