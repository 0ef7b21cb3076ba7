"""A catalog of shared topics in one SQLite file, for the processes of one machine.

Each verb is one transaction (Q1 in `topicsd/catalog/engines/sqlite_file.py`), so a commit of a blob, whatever
number of topics it has, is one sync of the disk. The clock of the catalog (C9) is that of the machine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from topicsd.catalog.engines.sqlite_file import SqliteFile
from topicsd.catalog.shared import shared_tables as tables
from topicsd.catalog.shared.part_changes import (
    KnownPart,
    LastPart,
    PartRun,
    TopicFacts,
    check_compaction,
    decide_slice,
    replaced_after,
)
from topicsd.catalog.shared.shared_catalog import (
    CONDEMNED_MS,
    EXTENTS_AT_ONCE,
    PRODUCER_KEPT_MS,
    PRODUCERS_MAX,
    REPEATED_MS,
    TOPICS_AT_ONCE,
    BrokerNode,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    ConfigChanged,
    HeadNotice,
    LogState,
    PartResult,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
    TrimReason,
)
from topicsd.catalog.shared.sqlite_listener import SqliteHeadListener

_SELECT_STATE: Final = "SELECT incarnation, log_state, head FROM topicsd_shared_topics WHERE name = :topic"
_SELECT_PART: Final = (
    "SELECT first_seq, last_seq, digest FROM topicsd_shared_parts"
    " WHERE topic = ? AND append_id = ? AND committed_ms >= ?"
)
_INSERT_PART: Final = (
    "INSERT OR REPLACE INTO topicsd_shared_parts"
    " (topic, append_id, first_seq, last_seq, digest, committed_ms) VALUES (?, ?, ?, ?, ?, ?)"
)
_SELECT_PRODUCER: Final = (
    "SELECT first_number, last_number, first_seq, last_seq FROM topicsd_shared_producers"
    " WHERE topic = ? AND name = ?"
)
_COUNT_PRODUCERS: Final = (
    "SELECT count(*), coalesce(sum(used_ms < :silent_ms), 0) FROM topicsd_shared_producers"
    " WHERE topic = :topic"
)
_INSERT_PRODUCER: Final = (
    "INSERT OR REPLACE INTO topicsd_shared_producers"
    " (topic, name, first_number, last_number, first_seq, last_seq, used_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_HEAD: Final = "UPDATE topicsd_shared_topics SET head = ? WHERE name = ?"
_SELECT_HEAD: Final = "SELECT head FROM topicsd_shared_topics WHERE name = ? AND incarnation = ?"
_SELECT_CONDEMNED: Final = "SELECT count(*) FROM topicsd_shared_condemned WHERE key = ?"
_IS_REFERRED_TO: Final = "SELECT EXISTS (SELECT 1 FROM topicsd_shared_extents WHERE key = ?)"
_CONDEMN: Final = "INSERT OR IGNORE INTO topicsd_shared_condemned (key, condemned_ms) VALUES (?, ?)"

_compactions = msgspec.json.Decoder(Compaction)
_nodes = msgspec.json.Decoder(BrokerNode)


class SqliteSharedCatalog:
    """A catalog in a file, which is created with its tables if it does not exist."""

    def __init__(
        self,
        path: str,
        now_ms: Callable[[], int],
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        producers_max: int = PRODUCERS_MAX,
        repeated_ms: int = REPEATED_MS,
    ) -> None:
        self._file = SqliteFile(path, connect)
        self._now_ms = now_ms
        self._producers_max = producers_max
        self._repeated_ms = repeated_ms

    @property
    def url(self) -> str:
        return self._file.url

    def close(self) -> None:
        self._file.close()

    def catalog_id(self) -> str:
        with self._file.read() as db:
            return str(_one(db, tables.SELECT_ID, {})[0])

    # -- topics

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        new = SharedTopic(name, incarnation, "OPEN", 0, 0, 0, 0, self._now_ms(), config, 1)
        with self._file.change() as db:
            db.execute(tables.INSERT_TOPIC, asdict(new))
            topic = _topic(db, name)
        assert topic is not None
        if topic.incarnation != incarnation:
            raise TopicExists(name)
        return topic

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        with self._file.snapshot() as db:
            return [_topic(db, name) for name in names[:TOPICS_AT_ONCE]]

    def configure(self, name: str, incarnation: int, config: bytes, version: int) -> SharedTopic | None:
        def decide(topic: SharedTopic) -> SharedTopic:
            if (topic.config_version, topic.config) == (version + 1, config):
                return topic
            if topic.config_version != version:
                raise ConfigChanged(name)
            return replace(topic, config=config, config_version=version + 1)

        return self._change(name, incarnation, decide)

    def fence(self, name: str, incarnation: int, log_state: LogState) -> SharedTopic | None:
        return self._change(name, incarnation, lambda topic: replace(topic, log_state=log_state))

    def forget(self, name: str, incarnation: int) -> None:
        with self._file.change() as db:
            topic = _topic(db, name)
            if topic is not None and topic.incarnation == incarnation:
                for statement in tables.FORGET:
                    db.execute(statement, {"name": name})

    def _change(
        self, name: str, incarnation: int, decide: Callable[[SharedTopic], SharedTopic]
    ) -> SharedTopic | None:
        """Replace the row of a topic by what `decide` makes of it, in one transaction."""
        with self._file.change() as db:
            topic = _topic(db, name)
            if topic is None or topic.incarnation != incarnation:
                return None
            changed = decide(topic)
            if changed != topic:
                db.execute(tables.UPDATE_TOPIC, asdict(changed))
        return changed

    # -- writes

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        now_ms = self._now_ms()
        results: list[list[PartResult]] = []
        with self._file.change() as db:
            is_condemned = db.execute(_SELECT_CONDEMNED, (key,)).fetchone()[0] > 0
            for one in slices:
                state = self._state(db, one, now_ms)
                change = decide_slice(one, state, is_condemned)
                for run in change.runs:
                    self._add_run(db, one.topic, run, run.extent(key, encoding, now_ms))
                results.append(change.results)
        return results

    def _state(self, db: sqlite3.Connection, one: Slice, now_ms: int) -> TopicFacts | None:
        row = db.execute(_SELECT_STATE, {"topic": one.topic}).fetchone()
        if row is None:
            return None
        known: dict[str, KnownPart] = {}
        producers: dict[str, LastPart] = {}
        for part in one.parts:
            append = (one.topic, part.append_id, now_ms - self._repeated_ms)
            if (values := db.execute(_SELECT_PART, append).fetchone()) is not None:
                known[part.append_id] = KnownPart(*values)
            name = part.producer.name if part.producer is not None else None
            if name is not None and name not in producers:
                values = db.execute(_SELECT_PRODUCER, (one.topic, name)).fetchone()
                if values is not None:
                    producers[name] = LastPart(*values)

        def has_room(new: int) -> bool:
            silent_ms = now_ms - PRODUCER_KEPT_MS
            count, silent = db.execute(
                _COUNT_PRODUCERS, {"topic": one.topic, "silent_ms": silent_ms}
            ).fetchone()
            return not self._producers_max or count + new - silent <= self._producers_max

        incarnation, log_state, head = row
        return TopicFacts(incarnation, log_state, head, known, producers, has_room)

    def _add_run(self, db: sqlite3.Connection, topic: str, run: PartRun, extent: SharedExtent) -> None:
        now_ms = extent.created_ms
        db.execute(tables.INSERT_EXTENT, {"topic": topic, **asdict(extent)})
        db.executemany(
            _INSERT_PART,
            [
                (topic, one.part.append_id, one.first_seq, one.last_seq, one.part.digest, now_ms)
                for one in run.parts
            ],
        )
        db.execute(_UPDATE_HEAD, (run.last_seq, topic))
        producers = run.producers
        for name, write in producers.items():
            db.execute(_INSERT_PRODUCER, (topic, name, *write, now_ms))
        if producers and self._producers_max:
            self._drop_silent(db, topic, now_ms)

    def _drop_silent(self, db: sqlite3.Connection, topic: str, now_ms: int) -> None:
        silent = {"topic": topic, "silent_ms": now_ms - PRODUCER_KEPT_MS}
        (count, _) = db.execute(_COUNT_PRODUCERS, silent).fetchone()
        # A negative limit is none in SQLite.
        if count > self._producers_max:
            db.execute(tables.DELETE_SILENT_PRODUCERS, {**silent, "producers_max": self._producers_max})

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        page = {"name": name, "seq": seq, "limit": min(limit, EXTENTS_AT_ONCE)}
        with self._file.read() as db:
            return [tables.extent_row(one) for one in db.execute(tables.SELECT_EXTENTS_FROM, page).fetchall()]

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        with self._file.snapshot() as db:
            rows = [db.execute(_SELECT_HEAD, topic).fetchone() for topic in topics]
        return [-1 if row is None else row[0] for row in rows]

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> SqliteHeadListener:
        return SqliteHeadListener(self._file.connect, on_notices)

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        with self._file.change() as db:
            topic = _topic(db, name)
            if topic is None or topic.incarnation != incarnation:
                return None
            deleted_to, evicted_to = tables.trimmed(topic, to_seq, reason)
            changed = replace(topic, deleted_to=deleted_to, evicted_to=evicted_to)
            if changed != topic:
                db.execute(tables.UPDATE_TOPIC, asdict(changed))
                before = {"name": name, "first_seq": changed.first_seq}
                db.execute(tables.DELETE_EXTENTS_BEFORE, before)
        return changed

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        with self._file.change() as db:
            if _topic(db, name) is None:
                return None
            claim = tables.claimed(_claim(db, name), name, compactor, lease_ms, self._now_ms())
            if claim is not None:
                db.execute(tables.UPSERT_CLAIM, asdict(claim))
        return claim

    def release(self, claim: Claim) -> None:
        with self._file.change() as db:
            db.execute(tables.DELETE_CLAIM, {"topic": claim.topic, "compactor": claim.compactor})

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        name, new, now_ms = compaction.topic, compaction.extent, self._now_ms()
        with self._file.change() as db:
            if not tables.is_claimed(_claim(db, name), claim.compactor, now_ms):
                raise ClaimLost(name)
            topic = _topic(db, name)
            if topic is None or topic.incarnation != compaction.incarnation:
                raise CompactionRefused(f"topic {name}: there is no such topic")
            if _is_done(db, compaction):
                return
            if db.execute(_SELECT_CONDEMNED, (new.key,)).fetchone()[0]:
                raise CompactionRefused(f"topic {name}: the object {new.key} was condemned")
            page = {
                "name": name,
                "after": replaced_after(topic.compacted_to, new.first_seq),
                "last_seq": new.last_seq,
            }
            present = [tables.extent_row(one) for one in db.execute(tables.SELECT_EXTENTS_TO, page)]
            check_compaction(compaction, present, topic.compacted_to, now_ms, self._repeated_ms)
            between = {"name": name, "first_seq": new.first_seq, "last_seq": new.last_seq}
            db.execute(tables.DELETE_EXTENTS_BETWEEN, between)
            db.execute(tables.INSERT_EXTENT, {"topic": name, **asdict(new)})
            db.execute(
                tables.UPDATE_TOPIC,
                asdict(replace(topic, compacted_to=max(topic.compacted_to, new.last_seq))),
            )
            record = {"topic": name, "compaction": msgspec.json.encode(compaction)}
            db.execute(tables.UPSERT_COMPACTION, record)

    def finish_compaction(self, name: str) -> Compaction | None:
        with self._file.change() as db:
            compaction = _compaction(db, name)
            if compaction is not None:
                db.execute(tables.DELETE_COMPACTION, {"name": name})
        return compaction

    def condemn(self, keys: Sequence[str]) -> set[str]:
        with self._file.change() as db:
            condemned = {key for key in keys if not db.execute(_IS_REFERRED_TO, (key,)).fetchone()[0]}
            db.executemany(_CONDEMN, [(key, self._now_ms()) for key in condemned])
        return condemned

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        now_ms = self._now_ms()
        beat = {"name": node.name, "node": msgspec.json.encode(node)}
        with self._file.change() as db:
            db.execute(tables.UPSERT_NODE, {**beat, "now_ms": now_ms, "expire_ms": expire_ms})
            db.execute(tables.DELETE_DEAD_NODES, {"now_ms": now_ms})
            # Here, since each node does it regularly and none waits for it.
            db.execute(tables.DELETE_OLD_PARTS, {"before_ms": now_ms - self._repeated_ms})
            db.execute(tables.DELETE_OLD_MARKS, {"before_ms": now_ms - CONDEMNED_MS})

    def leave(self, name: str) -> None:
        with self._file.change() as db:
            db.execute(tables.DELETE_NODE, {"name": name})

    def nodes(self) -> list[BrokerNode]:
        with self._file.read() as db:
            rows = db.execute(tables.SELECT_NODES, {"now_ms": self._now_ms()}).fetchall()
        return [replace(_nodes.decode(node), age_ms=age_ms) for node, age_ms in rows]

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, TOPICS_AT_ONCE)}
        with self._file.read() as db:
            return [tables.topic_row(one) for one in db.execute(tables.SELECT_TOPICS, page).fetchall()]


def _one(db: sqlite3.Connection, statement: str, parameters: Mapping[str, Any]) -> Any:
    return db.execute(statement, parameters).fetchone()


def _topic(db: sqlite3.Connection, name: str) -> SharedTopic | None:
    values = _one(db, tables.SELECT_TOPIC, {"name": name})
    return None if values is None else tables.topic_row(values)


def _claim(db: sqlite3.Connection, name: str) -> Claim | None:
    values = _one(db, tables.SELECT_CLAIM, {"topic": name})
    return None if values is None else tables.claim_row(values)


def _compaction(db: sqlite3.Connection, name: str) -> Compaction | None:
    values = _one(db, tables.SELECT_COMPACTION, {"name": name})
    return None if values is None else _compactions.decode(values[0])


def _is_done(db: sqlite3.Connection, compaction: Compaction) -> bool:
    """Return whether a compaction is recorded, or its extent is in the catalog."""
    name, new = compaction.topic, compaction.extent
    recorded = _compaction(db, name)
    if recorded is not None and recorded.compaction_id == compaction.compaction_id:
        return True
    last = _one(db, tables.SELECT_EXTENTS_FROM, {"name": name, "seq": new.last_seq, "limit": 1})
    return last is not None and tables.extent_row(last).key == new.key
