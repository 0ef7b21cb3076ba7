"""The lags of the named cursors of topics, from the files or from the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from shared.runtime.clock import SystemClock
from spark.source.read_options import ReadOptions, parse_options
from spark.view.directory_view import open_directory
from spark.view.server_client import ServerClient, in_path
from topicsd.engine.read.cursors import records_after
from topicsd.engine.topic import Topic
from topicsd.offline.loaded_shard import LoadedShard


class CursorLag(NamedTuple):
    topic: str
    cursor: str
    from_seq: int
    set_ts: int
    lag_records: int


def topics_with_cursors(options: ReadOptions) -> list[Topic]:
    """Return topics with cursors from the snapshots: manifests, used for records, have none."""
    data_dir, topics = open_directory(options.path, options.store_url, None), []
    for shard in data_dir.shards:
        loaded = LoadedShard(data_dir, shard, SystemClock())
        loaded.walk()
        loaded.close()
        topics += [topic for topic in loaded.state.topics.values() if topic.cursors]
    return topics


def lags_of(topic: Topic) -> list[CursorLag]:
    cursors = list(topic.cursors.values())
    lags = records_after(topic, [one.from_seq for one in cursors])
    return [
        CursorLag(topic.name, one.name, one.from_seq, one.set_ms, lag)
        for one, lag in zip(cursors, lags, strict=True)
    ]


class _CursorItem(msgspec.Struct):
    cursor: str
    from_seq: int
    set_ts: int
    lag_records: int


class _CursorList(msgspec.Struct):
    cursors: list[_CursorItem]


def cursor_lags(raw: Mapping[str, str], topics: list[str]) -> list[CursorLag]:
    """Return the cursor lags of these topics, which are among those the options select."""
    options = parse_options(raw, is_stream=False)
    lags = []
    if options.path:
        for topic in topics_with_cursors(options):
            if topic.name in topics:
                lags += lags_of(topic)
        return sorted(lags)
    with ServerClient(options.url, options.api_key) as client:
        for name in topics:
            answer = client.ask("GET", f"topics/{in_path(name)}/cursors")
            for item in msgspec.json.decode(answer, type=_CursorList).cursors:
                lags.append(CursorLag(name, item.cursor, item.from_seq, item.set_ts, item.lag_records))
    return lags
