"""A byte that rots between a SIGKILL and the start behind it, in what was acked and not yet synced."""

from __future__ import annotations

from pathlib import Path

from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import flip, log_end
from tests.harness.shard.one_shard import RealShard


def killed_with_three_acked(path: Path) -> tuple[RealShard, list[int]]:
    """The shard, and where its records stand; the last two were never synced."""
    shard = RealShard(path)
    for number in range(3):
        assert shard.append("orders", number).last_seq == number + 1
    shard.stop_dead()
    rows = run_here("inspect", path, "--frames", "--json").json_lines
    return shard, [row["offset"] for row in rows if row["type"] == "append"]


def test_seqs_of_acked_records_that_are_cut_off_are_not_used_again(tmp_path: Path) -> None:
    shard, offsets = killed_with_three_acked(tmp_path)
    ceiling = shard.topic("orders").ceiling
    flip(shard.wal_files()[0], offsets[1] + 40)
    shard.reopen()
    assert shard.append("orders", "another").first_seq == ceiling + 1
    assert [tuple(gap) for gap in shard.topic("orders").lost.ranges] == [(2, ceiling, "crash")]


def test_a_last_write_that_was_not_finished_loses_nothing(tmp_path: Path) -> None:
    """It has no BatchEnd, so no write in it was acknowledged."""
    shard, offsets = killed_with_three_acked(tmp_path)
    end = log_end(shard)
    with open(shard.wal_files()[0], "r+b") as file:
        file.seek(end - 60)
        file.write(bytes(60))
    shard.reopen()
    assert shard.append("orders", "another").first_seq == 3
    assert shard.topic("orders").lost.ranges == []
    assert len(offsets) == 3
