"""`topicsd doctor` and `topicsd verify` on a log with copies by reference."""

from __future__ import annotations

import os
from pathlib import Path

from shared.contract.route_rule import RouteRule
from tests.e2e.test_doctor import doctor, repaired
from tests.harness.shard.one_shard import RealShard, RecordedReply
from topicsd.engine.routes.route import put_route
from topicsd.stream.feeds import Feeds
from topicsd.stream.route_runner import RouteRunners


def begun(path: Path) -> RealShard:
    """Open a shard with running routes."""
    shard = RealShard(path)
    state = shard.shard.state
    RouteRunners(state, shard.loop, Feeds(state, shard.loop))
    return shard


def route(shard: RealShard, source: str, dest: str, **options: bool) -> None:
    put_route(shard.shard.state, RouteRule(dest, source, dest, **options), RecordedReply())
    shard.settle()


def end_of_log(shard: RealShard) -> int:
    place = shard.shard.log.place
    assert place is not None
    return place.offset


def end(shard: RealShard) -> None:
    shard.pass_time(60)
    shard.shard.close(checkpoint=False)


def damage(path: Path, first: int, last: int) -> None:
    """Damage every batch between these offsets."""
    with open(path, "r+b") as file:
        file.seek(first)
        file.write(os.urandom(last - first))


def test_a_route_created_in_a_damaged_range_may_have_copied_there(tmp_path: Path) -> None:
    shard = begun(tmp_path)
    for name in ("a", "d"):
        shard.put(name, durability="fsync")
    shard.append("d", "own")
    shard.append("a", *range(200))
    first = end_of_log(shard)
    route(shard, "a", "d", is_from_start=True)
    last, head = end_of_log(shard), shard.topic("d").head
    assert head == 201
    shard.delete_topic("a")
    shard.append("other", "behind")
    (file,) = shard.wal_files()
    end(shard)
    damage(Path(file), first, last)
    mended = repaired(tmp_path)
    assert mended.append("d", "new").first_seq > head
    mended.close()


def test_copies_of_an_unknown_topic_are_counted_as_lost(tmp_path: Path) -> None:
    shard = begun(tmp_path)
    shard.put("a")
    first = end_of_log(shard)
    shard.put("d")
    last = end_of_log(shard)
    route(shard, "a", "d")
    shard.append("a", 1, 2)
    shard.append("d", "own")
    shard.append("a", 3)
    (file,) = shard.wal_files()
    end(shard)
    damage(Path(file), first, last)
    loses = doctor(tmp_path, "--repair", code=1)["loses"]
    assert [one for one in loses if "whose names are lost" in one] == [
        "4 records of topics whose names are lost with their creation"
    ]
