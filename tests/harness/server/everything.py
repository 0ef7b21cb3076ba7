"""A data directory that holds one of everything, left by a real server that was killed.

The newest snapshot of each shard holds what `fill` makes, and so does the log after it, so that both paths of
recovery are used. `Everything` keeps the server's last answers, which its files must reproduce.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shared.contract.errors import Refusal
from shared.settings.settings import Settings
from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.everything_fill import (
    KEY,
    SEGMENT_RECORDS,
    SHARDS,
    WAIT_SECONDS,
    Names,
    fill,
    records,
)
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import shard_paths
from topicsd.engine.checkpoint.manifest import read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.queue.claim import claim
from topicsd.engine.requests import ClaimRequest, DeleteRequest
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import open_shard
from topicsd.engine.topic_admin import delete_topic
from topicsd.log.current_file import read_current, write_current


class Said(NamedTuple):
    """A server's answers about all topics and routes."""

    states: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    cursors: dict[str, list[dict[str, Any]]]
    routes: list[dict[str, Any]]


class Everything(NamedTuple):
    folder: Path
    said: Said
    first: Names
    """Topics captured by a checkpoint."""
    second: Names
    """Topics in the log only."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def cold(self) -> Path:
        return self.folder / "cold"

    def copied(self, folder: Path) -> Everything:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return self._replace(folder=folder)


def server(folder: Path, *more: str) -> WholeServer:
    flags = [
        f"--cold-dir={folder / 'cold'}",
        "--hot-retain-segments=1",
        f"--segment-max-events={SEGMENT_RECORDS}",
        "--wal-file-bytes=1MiB",
        "--checkpoint-interval-ms=3600000",
    ]
    return WholeServer(folder, *flags, *more, shards=SHARDS, environ={"TOPICS_API_KEYS": KEY})


def build(folder: Path) -> Everything:
    (folder / "cold").mkdir()
    with server(folder) as running:
        first = fill(TopicClient(running.port, KEY), "a")
        running.kill()
    lose_the_machine(folder)
    asyncio.run(capture_and_thin_out(folder, first))
    with server(folder) as running:
        for number in range(4):
            TopicClient(running.port, KEY).append(f"late-{number}", *records(2))
        running.kill()
    lose_the_machine(folder)
    with server(folder) as running:
        api = TopicClient(running.port, KEY)
        second = fill(api, "b")
        continue_after_snapshot(api, first)
        said = ask(api)
        wait_until_synced(folder, api, said)
        running.kill()
    return Everything(folder, said, first, second)


def lose_the_machine(folder: Path) -> None:
    """Make the directory look as after a machine restart: the next run reports lost seqs."""
    for shard in range(SHARDS):
        path = shard_paths(str(folder / "data"), shard).current
        current = read_current(RealFs(), path)
        assert current is not None
        write_current(RealFs(), path, msgspec.structs.replace(current, boot_id="another-boot"))


async def capture_and_thin_out(folder: Path, names: Names) -> None:
    """Create segments, some of which are compacted or moved, as a server does once a minute.

    The last snapshot notes that the files of a deleted topic are still to be removed.
    """
    settings = Settings(
        cold_dir=str(folder / "cold"), hot_retain_segments=1, segment_max_events=SEGMENT_RECORDS
    )
    for number in range(SHARDS):
        shard = open_shard(str(folder / "data"), number, settings=settings)
        if names.rewritten in shard.topic_names():
            await _done(shard.start_checkpoint)
            request = DeleteRequest(seqs=[*range(2, SEGMENT_RECORDS)])
            await _done(partial(delete_records, shard.state, names.rewritten, request))
        if names.jobs in shard.topic_names():
            await _done(partial(claim, shard.state, names.jobs, ClaimRequest("worker", 1, None)))
        await _done(shard.start_checkpoint)
        shard.upkeep.start_round()
        deadline = time.monotonic() + WAIT_SECONDS
        while not _is_thinned(folder / "data", number):
            assert time.monotonic() < deadline, f"segments of shard {number} move"
            await asyncio.sleep(0.02)
        for topic in (names.doomed, names.doomed_too):
            if topic in shard.topic_names():
                await _done(partial(delete_topic, shard.state, topic, False))
        shard.close()


def snapshots_of(everything: Everything) -> list[Snapshot]:
    """Return the snapshot of each shard from which a start continues."""
    fs = RealFs()
    paths = [shard_paths(str(everything.data), shard) for shard in range(SHARDS)]
    return [read_snapshot(fs, one, snapshot_numbers(fs, one)[0]) for one in paths]


async def _done(start: Callable[[Callable[[Any], None]], object]) -> None:
    done = asyncio.get_running_loop().create_future()
    start(done.set_result)
    answer = await done
    assert not isinstance(answer, Refusal | Exception), answer


def continue_after_snapshot(api: TopicClient, names: Names) -> None:
    """Change what the snapshot holds, in the log only."""
    copies = {names.same: 7, names.across: 7, names.once: 7, names.filtered: 2}
    before = {topic: len(api.rows(topic)) for topic in copies}
    api.append(names.plain, *records(7, "k", first=200))
    for topic, count in copies.items():
        api.wait_for_rows(topic, before[topic] + count)
    api.call(names.plain, "delete", match=["tag", "Eq", "k.0"])
    api.call(names.other, "delete", before_seq=25)
    api.append(names.capped, *records(SEGMENT_RECORDS))
    api.call(names.leased, "ack", node="worker", seqs=[5])
    api.put(names.other, priority=-3)
    api.ask("PUT", f"topics/{names.other}/cursors/billing", {"from_seq": 30})
    api.ask("DELETE", f"topics/{names.rewritten}")
    api.append(names.rewritten, *records(4))


def ask(api: TopicClient) -> Said:
    listed = api.ask("GET", "topics?page_size=1000")["topics"]
    topics = [topic["topic"] for topic in listed]
    states = {topic: api.state(topic) for topic in topics}
    return Said(
        states,
        {topic: api.rows(topic) for topic in topics},
        {topic: api.ask("GET", f"topics/{topic}/cursors")["cursors"] for topic in topics},
        api.ask("GET", "routers")["routers"],
    )


def wait_until_synced(folder: Path, api: TopicClient, said: Said) -> None:
    """Wait until everything acknowledged is on disk, and the log proves it."""
    topics = said.states.items()
    api.wait_until_durable(*[name for name, one in topics if one["config"]["durability"] != "ephemeral"])
    # The log names the synced position in the batch after it.
    wait_until(partial(_is_proven, folder), "the log proves what is synced")


def _is_thinned(data: Path, shard: int) -> bool:
    """Return whether the shard has a cold segment, and shard 0 also a compacted one."""
    manifest = read_manifest(RealFs(), shard_paths(str(data), shard))
    segments = [segment for topic in manifest.topics for segment in topic.segments]
    is_rewritten = shard > 0 or any(one.generation for one in segments)
    return is_rewritten and any(one.tier == "cold" for one in segments)


def _is_proven(folder: Path) -> bool:
    shards = run_here("inspect", folder / "data", "--json").json["shards"]
    topics = [topic for shard in shards for topic in shard["topics"]]
    return all(topic["durable_seq"] >= (topic["head_seq"] or 0) for topic in topics)
