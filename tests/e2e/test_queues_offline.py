"""The offline commands on queues with jobs in every state, in the log and in a snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import flip, stop
from tests.harness.shard.one_shard import RealShard, record

COMMANDS = (
    ("inspect",),
    ("inspect", "--json"),
    ("inspect", "--topic", "mails"),
    ("inspect", "--frames"),
    ("inspect", "--checkpoint"),
    ("verify",),
    ("doctor",),
    ("doctor", "--repair"),
    ("doctor", "--repair", "--apply"),
)


def queues(path: Path) -> RealShard:
    shard = RealShard(path)
    shard.put("mails", type="queue", max_deliveries=1, leases_durable=True)
    shard.put("steps", type="queue", order_by="tag")
    shard.append("mails", *range(6))
    shard.append("mails", 7, 8, delay_ms=60_000)
    shard.append("steps", record(1, tag="a"), record(2, tag="a"), record(3, tag="b"))
    shard.claimed("mails", "worker", 2, lease_ms=1000)
    shard.claimed("steps", "worker", 1)
    shard.pass_time(2000)
    shard.claimed("mails", "worker", 2)
    shard.delete("mails", before_seq=2)
    return shard


@pytest.mark.parametrize("in_snapshot", [False, True])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_reads_a_directory_with_queues(
    tmp_path: Path, command: tuple[str, ...], in_snapshot: bool
) -> None:
    shard = queues(tmp_path)
    if in_snapshot:
        shard.shard.close()
    else:
        stop(shard)
    name, *flags = command
    ran = run_here(name, tmp_path, *flags)
    assert (ran.code, ran.err) == (0, "")


def test_a_damaged_log_with_jobs_is_repaired(tmp_path: Path) -> None:
    shard = queues(tmp_path)
    stop(shard)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    row = next(row for row in rows if row["type"] == "append" and row["topic"] == "steps")
    flip(shard.wal_files()[0], row["offset"] + 50)
    assert run_here("verify", tmp_path).code == 1
    ran = run_here("doctor", tmp_path, "--repair", "--apply")
    assert ran.code == 0, ran.out + ran.err
    shard.reopen()
    assert shard.claimed("mails", "worker", 10)
