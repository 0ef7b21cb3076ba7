"""An empty shard never takes the place of one whose metadata was lost."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import DATA_DIR
from topicsd.log.walk import UnreadableLog

ROOT = f"{DATA_DIR}/shards/00"


def checkpointed() -> OneShard:
    one = OneShard()
    one.append("t", 1, 2, 3)
    one.checkpoint()
    one.close()
    return one


def unlink_all(one: OneShard, folder: str) -> None:
    for name in one.disk.list_dir(f"{ROOT}/{folder}"):
        if name != "readers":
            one.disk.unlink(f"{ROOT}/{folder}/{name}")


@pytest.mark.parametrize("folders", [("wal",), ("wal", "meta")])
def test_without_a_log_and_a_good_snapshot_the_shard_does_not_start(folders: tuple[str, ...]) -> None:
    one = checkpointed()
    for folder in folders:
        unlink_all(one, folder)
    if "meta" not in folders:
        for name in one.disk.list_dir(f"{ROOT}/meta"):
            if name.startswith("snapshot"):
                one.disk.flip(f"{ROOT}/meta/{name}", 30)
    with pytest.raises(UnreadableLog, match="no good snapshot and no log"):
        one.open(one.disk)


def test_without_a_snapshot_the_whole_log_is_enough() -> None:
    one = checkpointed()
    unlink_all(one, "meta")
    one.open(one.disk)
    assert one.seqs("t") == [1, 2, 3]
