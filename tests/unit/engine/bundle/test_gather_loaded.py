"""A topic of a shard that no server has open is gathered without changing its directory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RealShard, record
from tests.harness.shard.shard_driver import INSTANCE
from tests.harness.shard.topic_view import topic_view
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import ShardPaths, read_layout
from topicsd.engine.bundle.contents import gather_loaded
from topicsd.engine.bundle.segment_source import DirectorySource
from topicsd.engine.checkpoint.segment_copy import Files
from topicsd.engine.topic import Topic
from topicsd.log.writer import Identity
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard

ENDS = {"closed": RealShard.close, "killed": RealShard.stop_dead}


def tree(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("config", [{}, {"type": "queue", "order_by": "tag"}, {"cap_records": 11}], ids=str)
def test_a_loaded_topic_is_adopted_as_it_was(tmp_path: Path, config: dict[str, Any], end: str) -> None:
    one = RealShard(tmp_path / "data", segment_max_events=7)
    one.put("t", **config)
    for number in range(30):
        one.append("t", record(number, tag="ab"[number % 2]), idempotency_key=f"k{number}")
        if number in (10, 20):
            one.checkpoint()
            one.delete("t", seqs=[number - 3, number])
    before = topic_view(one, "t")
    ENDS[end](one)
    files_before = tree(tmp_path / "data")

    fs, staged = RealFs(), ShardPaths(str(tmp_path / "staged"))
    (tmp_path / "staged" / "topics").mkdir(parents=True)
    layout = read_layout(fs, str(tmp_path / "data"))
    assert layout is not None
    data_dir = DataDir(fs, str(tmp_path / "data"), layout, [0], "")
    with closing(LoadedShard(data_dir, 0, one.clock)) as loaded:
        loaded.walk()
        assert not loaded.problem
        files = Files(fs, staged, Identity(INSTANCE, 0), loaded.state.files)
        topic = loaded.state.topics["t"]
        bundle = gather_loaded(loaded.state, topic, files, heads_exact=True)
    assert tree(tmp_path / "data") == files_before

    other = RealShard(tmp_path / "other")
    source = DirectorySource(fs, staged.root, one.paths.root)
    outcomes: list[Any] = []
    other.shard.state.jobs.start(other.shard.adopter.adopt(bundle, source), outcomes.append)
    other.settle()
    assert isinstance(outcomes[0], Topic), outcomes
    assert topic_view(other, "t") == before
    other.kill()
    assert topic_view(other, "t") == before


def test_seqs_up_to_the_ceiling_are_lost_unless_the_heads_are_exact() -> None:
    one = OneShard()
    one.append("t", 1, 2)
    topic = one.topic("t")
    assert topic.ceiling > 2
    one.checkpoint()
    files = Files(one.disk, ShardPaths("/staged"), Identity(INSTANCE, 0), one.shard.state.files)
    one.disk.make_dirs("/staged/topics")
    bundle = gather_loaded(one.shard.state, topic, files, heads_exact=False)
    assert bundle.topic.head == topic.ceiling
    assert bundle.topic.lost == [(3, topic.ceiling, "crash")]
