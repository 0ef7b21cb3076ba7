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
from typing import Any, NamedTuple, TypeVar
from unittest import mock

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
    move,
    records,
)
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer
from topicsd.catalog.catalog import Ownership, TopicRow
from topicsd.catalog.sqlite_catalog import SqliteCatalog
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import read_layout, shard_paths
from topicsd.disk.placement_file import read_placement
from topicsd.engine.bundle.gather import Gathered
from topicsd.engine.bundle.segment_source import DirectorySource
from topicsd.engine.checkpoint.manifest import read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership import exporter
from topicsd.engine.ownership.catalog_work import Node
from topicsd.engine.queue.claim import claim
from topicsd.engine.requests import AppendRequest, ClaimRequest, DeleteRequest, NewRecord
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard, open_shard
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import delete_topic
from topicsd.engine.write.append import append
from topicsd.log.current_file import read_current, write_current

T = TypeVar("T")

STAYS_HOT = "--hot-retain-segments=1000"
"""Without exports there is no checkpoint after them: what follows stays in the log only."""
WAL_FILE_BYTES = 1 << 20
OTHER_NODE = "0f" * 16
"""A node that took a topic over."""


class Said(NamedTuple):
    """A server's answers about all topics and routes."""

    states: dict[str, Any]
    rows: dict[str, list[dict[str, Any]]]
    cursors: dict[str, list[dict[str, Any]]]
    schedules: dict[str, list[dict[str, Any]]]
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
        f"--wal-file-bytes={WAL_FILE_BYTES}",
        "--checkpoint-interval-ms=3600000",
    ]
    return WholeServer(folder, *flags, *more, shards=SHARDS, environ={"TOPICS_API_KEYS": KEY})


def build(folder: Path) -> Everything:
    (folder / "cold").mkdir()
    with server(folder) as running:
        running.ask_json("PUT", "/v0/keys/reader", {"scopes": ["read"]}, f"authorization: Bearer {KEY}")
        narrow = running.ask_json(
            "PUT",
            "/v0/keys/narrow",
            {"scopes": ["read"], "prefixes": ["found."]},
            f"authorization: Bearer {KEY}",
        )
        api = TopicClient(running.port, KEY)
        first = fill(api, "a")
        move(api, first.moved)
        running.kill()
    lose_the_machine(folder)
    for number in range(SHARDS):
        asyncio.run(take_part_in_catalog(folder, number, *[first.sealed][number:]))
    asyncio.run(take_part_in_catalog(folder, 0, exported=first.exported))
    take_over(folder, first.taken)
    asyncio.run(capture_and_thin_out(folder, first))
    asyncio.run(take_part_in_catalog(folder, 0, first.sealed_late))
    asyncio.run(adopt_one(folder, 1, first.adopted_late))
    with server(folder, STAYS_HOT) as running:
        for number in range(4):
            TopicClient(running.port, KEY).append(f"late-{number}", *records(2))
        running.kill()
    lose_the_machine(folder)
    with server(folder, STAYS_HOT) as running:
        api = TopicClient(running.port, KEY)
        topics: dict[str, object] = {"topics": {"found.*": {}}}
        running.ask_json("POST", "/v0/watch", topics, f"authorization: Bearer {narrow['key']}")
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


async def take_part_in_catalog(folder: Path, number: int, *to_seal: str, exported: str = "") -> None:
    """Create the rows of a shard's topics, seal some of the topics, and export one that stays in use.

    The ceiling of that one is raised without an answer: the next start logs it, with the digest of the state.
    """
    layout = read_layout(RealFs(), str(folder / "data"))
    assert layout is not None
    placement = read_placement(RealFs(), str(folder / "data"), SHARDS)
    path = str(folder / "catalog.sqlite")
    node = Node(
        layout.instance, lambda wait: SqliteCatalog(path), lambda topic: placement.shard_of(topic) == number
    )
    # No checkpoint but those asked for here: later ones would capture the frames of the seal.
    settings = msgspec.structs.replace(settings_of(folder), checkpoint_interval_ms=3_600_000)
    with mock.patch.object(exporter, "ROUND_SECONDS", 3600.0):
        shard = open_shard(str(folder / "data"), number, settings=settings, node=node)
    assert shard.hand_on is not None
    await _until(partial(_have_rows, shard), f"the topics of shard {number} have rows")
    assert shard.exporter is not None
    catalog = SqliteCatalog(path)
    rows = {row.name: row for row in catalog.list("", "", 1000)}
    await _until(partial(_have_ceilings, shard, rows), "the ceilings of the rows are noted")
    if exported:
        await _export(shard, exported)
        row = catalog.own(exported, rows[exported].ownership).row
        assert row is not None
        assert row.exported_to
        catalog.raise_ceiling(exported, row.ownership, row.ceiling + 1)
    catalog.close()
    for name in to_seal:
        await _export(shard, name)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        shard.hand_on.run(shard.hand_on.seal(name), done.set_result)
        row = await done
        assert isinstance(row, TopicRow), row
    shard.close(checkpoint=False)


async def _export(shard: Shard, name: str) -> None:
    """Export the sealed segments of a topic, with its state."""
    assert shard.exporter is not None
    assert await _run(shard, shard.gatherer.prepare(name)) is None
    exported = asyncio.get_running_loop().create_future()
    topic = shard.state.topics[name]
    job = shard.exporter.alone(topic, shard.exporter.topic_export.export(topic))
    shard.exporter.run(job, exported.set_result)
    assert await exported is None
    # The checkpoint after an export must not capture the frames that follow.
    await _until(lambda: not shard.checkpoints.is_running, "the checkpoint after the export ends")


def take_over(folder: Path, name: str) -> None:
    """Have another node take a topic over, so that it departs at the next start."""
    catalog = SqliteCatalog(str(folder / "catalog.sqlite"))
    row = catalog.own(name, Ownership("", 0, 0)).row
    assert row is not None
    catalog.adopt(name, OTHER_NODE, row.incarnation, row.owner_epoch, accept_loss=True)
    catalog.close()


def _have_rows(shard: Shard) -> bool:
    topics = shard.state.topics.values()
    return all(topic.ownership is not None and topic.ownership.owner_epoch for topic in topics)


def _have_ceilings(shard: Shard, rows: dict[str, TopicRow]) -> bool:
    topics = shard.state.topics.values()
    known = [(topic.ownership, rows[topic.name]) for topic in topics if topic.name in rows]
    return all(owned is None or owned.ceiling >= row.ceiling for owned, row in known)


def settings_of(folder: Path) -> Settings:
    return Settings(
        cold_dir=str(folder / "cold"),
        hot_retain_segments=1,
        segment_max_events=SEGMENT_RECORDS,
        wal_file_bytes=WAL_FILE_BYTES,
    )


async def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def capture_and_thin_out(folder: Path, names: Names) -> None:
    """Create segments, some of which are compacted, merged or moved, as a server does once a minute.

    The last snapshots note that the files of one deleted topic, and the objects of another, are still to be
    removed.
    """
    for number in range(SHARDS):
        shard = open_shard(str(folder / "data"), number, settings=settings_of(folder))
        if names.rewritten in shard.topic_names():
            await _done(shard.start_checkpoint)
            request = DeleteRequest(seqs=[*range(2, SEGMENT_RECORDS)])
            await _done(partial(delete_records, shard.state, names.rewritten, request))
        if names.jobs in shard.topic_names():
            await _done(partial(claim, shard.state, names.jobs, ClaimRequest("worker", 1, None)))
        await _done(shard.start_checkpoint)
        if number == 0:
            await _adopt(folder, shard, names.adopted)
            await _write_small_segments(shard, names.merged)
        shard.upkeep.start_round()
        rewritten = {names.rewritten, names.merged} if number == 0 else set()
        is_thinned = partial(_is_thinned, folder / "data", number, rewritten)
        await _until(is_thinned, f"segments of shard {number} move")
        deleted = {names.doomed, names.doomed_too}.intersection(shard.topic_names())
        for topic in (names.doomed, names.doomed_too):
            if topic in deleted:
                await _done(partial(delete_topic, shard.state, topic, False))
        if names.doomed in deleted:
            for _ in range(3):
                await _done(shard.start_checkpoint)
        shard.close()


async def adopt_one(folder: Path, number: int, name: str) -> None:
    """Let a shard adopt a topic, which its log has but no snapshot."""
    shard = open_shard(str(folder / "data"), number, settings=Settings(wal_file_bytes=WAL_FILE_BYTES))
    await _adopt(folder, shard, name)
    shard.close(checkpoint=False)


async def _adopt(folder: Path, shard: Shard, name: str) -> None:
    """Make a topic in a directory of its own, and let the shard adopt it."""
    donor = open_shard(str(folder / "donor"), settings=Settings(segment_max_events=SEGMENT_RECORDS))
    # Above every ordinal of the other shard, as in the log of a busy one.
    donor.state.epoch_floor = 1 << 30
    sent = [NewRecord(msgspec.Raw(b'{"n":%d}' % number), f"k.{number % 3}") for number in range(50)]
    await _done(partial(append, donor.state, name, AppendRequest(sent)))
    await _done(donor.start_checkpoint)
    await _done(partial(delete_records, donor.state, name, DeleteRequest(seqs=[3, 4, 30])))
    gathered = await _run(donor, donor.gatherer.gather(name))
    assert isinstance(gathered, Gathered), gathered
    source = DirectorySource(RealFs(), shard_paths(str(folder / "donor"), 0).root)
    adopted = await _run(shard, shard.adopter.adopt(gathered.bundle, source))
    assert isinstance(adopted, Topic), adopted
    donor.close()
    shutil.rmtree(folder / "donor")


async def _write_small_segments(shard: Shard, name: str) -> None:
    """Write segments of a topic, the oldest of which are merged."""
    for number in range(4):
        sent = [
            NewRecord(msgspec.Raw(b'{"n":%d}' % at), f"m.{at % 3}") for at in range(SEGMENT_RECORDS * 2 // 5)
        ]
        await _done(partial(append, shard.state, name, AppendRequest(sent)))
        if number == 0:
            await _done(partial(delete_records, shard.state, name, DeleteRequest(seqs=[2, 3])))
        shard.state.topics_to_seal.add(shard.state.topics[name])
        await _done(shard.start_checkpoint)
        shard.state.topics_to_seal.clear()


async def _run(shard: Shard, job: BackgroundJob[T]) -> T:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    shard.state.jobs.start(job, done.set_result)
    outcome = await done
    assert not isinstance(outcome, Exception), outcome
    return outcome  # type: ignore[no-any-return]


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
        {
            topic: api.ask("GET", f"topics/{topic}/schedules")["schedules"]
            for topic, state in states.items()
            if state["config"]["type"] == "queue"
        },
        [_without_requests(route) for route in api.ask("GET", "routers")["routers"]],
    )


def _without_requests(route: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a webhook did since the shard started."""
    return {**route, "delivery": {"lag": route["delivery"]["lag"]}} if "delivery" in route else route


def wait_until_synced(folder: Path, api: TopicClient, said: Said) -> None:
    """Wait until everything acknowledged is on disk, and the log proves it."""
    topics = said.states.items()
    api.wait_until_durable(*[name for name, one in topics if one["config"]["durability"] != "ephemeral"])
    # The log names the synced position in the batch after it.
    wait_until(partial(_is_proven, folder), "the log proves what is synced")


def _is_thinned(data: Path, shard: int, rewritten: set[str]) -> bool:
    """Return whether the shard has a cold segment, and a rewritten one in each of these topics."""
    manifest = read_manifest(RealFs(), shard_paths(str(data), shard))
    is_cold = any(one.tier == "cold" for topic in manifest.topics for one in topic.segments)
    return is_cold and rewritten <= {
        topic.name for topic in manifest.topics if any(one.generation for one in topic.segments)
    }


def _is_proven(folder: Path) -> bool:
    shards = run_here("inspect", folder / "data", "--json").json["shards"]
    topics = [topic for shard in shards for topic in shard["topics"]]
    return all(topic["durable_seq"] >= (topic["head_seq"] or 0) for topic in topics)
