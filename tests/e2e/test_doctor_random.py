"""Random shards are damaged anywhere and repaired: every loss is reported, no seq is used twice."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from shared.contract.route_rule import RouteRule
from tests.e2e.test_doctor import read_all
from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import flip
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.stage.route_shards import start_routes
from tests.harness.sweeps.crash_sweep import DEEP

CONFIG: dict[str, dict[str, object]] = {
    "orders": {},
    "bills": {"cap_records": 12},
    "audit": {"durability": "fsync"},
    "copies": {},
    "audited": {"durability": "fsync"},
}
COPIES = ("copies", "audited")
"""Destinations of the routes from orders; clients write into the second one, too."""
WRITTEN = [name for name in CONFIG if name != "copies"]


def copy_on(shard: RealShard) -> None:
    """Start routes on the shard."""
    start_routes(shard, *[RouteRule(dest, "orders", dest) for dest in COPIES])


def live_through(shard: RealShard, random: Random) -> None:
    for name, config in CONFIG.items():
        shard.put(name, **config)
    copy_on(shard)
    for number in range(random.randrange(10, 90)):
        name, what = random.choice([*WRITTEN, "orders"]), random.random()
        if what < 0.7:
            records = [record(number, tag=random.choice("xyz")) for _ in range(random.randrange(1, 4))]
            shard.append(name, *records)
            shard.pass_time(random.choice((0, 3)))
        elif what < 0.77:
            shard.delete(name, tag=random.choice("xyz"))
        elif what < 0.8:
            shard.delete(name, before_seq=random.randrange(1, shard.state(name).head_seq + 2))
        elif what < 0.83:
            shard.delete_topic(name)
            shard.put(name, **CONFIG[name])
        elif what < 0.9:
            shard.pass_time(60)
        elif what < 0.95:
            shard.checkpoint()
        else:
            shard.restart() if what < 0.97 else shard.kill()
            copy_on(shard)
    shard.pass_time(60)


def break_something(shard: RealShard, random: Random) -> None:
    kinds = [shard.paths.wal, shard.paths.topics, shard.paths.meta]
    for folder in random.sample(kinds, random.randrange(1, 3)):
        files = [
            path for path in sorted(Path(folder).rglob("*")) if path.is_file() and path.name != "CURRENT"
        ]
        if files:
            file = random.choice(files)
            if folder == shard.paths.wal and random.random() < 0.2:
                os.unlink(file)
            else:
                flip(file, random.randrange(max(1, len(file.read_bytes().rstrip(b"\0")))))


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("seed", range(400 if DEEP else 40))
def test_every_loss_is_reported_and_no_seq_is_used_twice(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    shard = RealShard(tmp_path, segment_max_events=10, wal_file_bytes=random.choice([4096, 8192, 1 << 16]))
    live_through(shard, random)
    before = {name: read_all(shard, name).seqs for name in CONFIG}
    heads = {name: (shard.topic(name).epoch, shard.state(name).head_seq) for name in CONFIG}
    shard.shard.close(checkpoint=random.random() < 0.3)
    break_something(shard, random)
    starts = run_here("doctor", tmp_path, "--json").json["shards"][0]["starts"]
    (done,) = run_here("doctor", tmp_path, "--json", "--repair", "--apply", "--revive-deleted").json["shards"]
    if any("backup" in one for one in done["refused"]):
        return
    assert done["starts"], (starts, done)
    assert all(one["level"] == "harmless" for one in done["findings"]), done["findings"]
    again = RealShard(tmp_path, segment_max_events=10)
    for name, (epoch, head) in heads.items():
        topic = again.shard.state.topics.get(name)
        if topic is None or topic.epoch != epoch:
            continue  # Its creation was in the damaged range.
        got = read_all(again, name)
        reported = {seq for first, last, _ in got.gaps for seq in range(first, min(last, head) + 1)}
        assert [seq for seq in before[name] if seq not in got.seqs and seq not in reported] == []
        assert again.append(name, "new").first_seq > head
    again.close()
