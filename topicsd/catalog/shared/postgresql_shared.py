"""A catalog of shared topics in PostgreSQL, for many nodes.

T1  `commit` is one call of a function (S1 in `topicsd/catalog/engines/postgresql_functions.py`), so it is one
    round trip for all topics of a blob, and one transaction.
T2  Another change locks the row of its topic and reads it, and writes in a second round trip. A change that
    depends on a blob locks the blob before the topic.
T3  Time is that of the server: `topicsd_shared_now_ms()`.
T4  A commit without an answer is sent again, for the time of the policy. What the first one committed is then
    `repeated`, with its seqs.

`topicsd/catalog/engines/postgresql_database.py` has the connections and P3 to P6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict, replace

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.engines.postgresql_database import BEGIN, PostgresqlDatabase, psycopg_form
from topicsd.catalog.shared import shared_tables as tables
from topicsd.catalog.shared.part_changes import check_compaction, replaced_after
from topicsd.catalog.shared.postgresql_notices import HeadPublisher, PostgresqlHeadListener
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

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

_NOW: Final = "SELECT topicsd_shared_now_ms()"
_SELECT_TOPIC: Final = psycopg_form(tables.SELECT_TOPIC)
_LOCK_TOPIC: Final = f"{_SELECT_TOPIC} FOR UPDATE"
_CREATE_TOPIC: Final = psycopg_form(tables.INSERT_TOPIC).replace("%(created_ms)s", "topicsd_shared_now_ms()")
_UPDATE_TOPIC: Final = psycopg_form(tables.UPDATE_TOPIC)
_SELECT_TOPICS: Final = psycopg_form(tables.SELECT_TOPICS)
_SELECT_NAMED: Final = tables.SELECT_TOPIC.replace("= :name", "= ANY (%s)")
_SELECT_HEADS: Final = "SELECT name, incarnation, head FROM topicsd_shared_topics WHERE name = ANY (%s)"
_FORGET: Final = tuple(map(psycopg_form, tables.FORGET))
_COMMIT: Final = f"SELECT * FROM topicsd_shared_commit({', '.join(['%s'] * 15)})"
_SELECT_EXTENTS_FROM: Final = psycopg_form(tables.SELECT_EXTENTS_FROM)
_SELECT_EXTENTS_TO: Final = psycopg_form(tables.SELECT_EXTENTS_TO)
_INSERT_EXTENT: Final = psycopg_form(tables.INSERT_EXTENT)
_DELETE_EXTENTS_BEFORE: Final = psycopg_form(tables.DELETE_EXTENTS_BEFORE)
_DELETE_EXTENTS_BETWEEN: Final = psycopg_form(tables.DELETE_EXTENTS_BETWEEN)
_SELECT_CLAIM: Final = psycopg_form(tables.SELECT_CLAIM)
_UPSERT_CLAIM: Final = psycopg_form(tables.UPSERT_CLAIM)
_DELETE_CLAIM: Final = psycopg_form(tables.DELETE_CLAIM)
_SELECT_COMPACTION: Final = psycopg_form(tables.SELECT_COMPACTION)
_UPSERT_COMPACTION: Final = psycopg_form(tables.UPSERT_COMPACTION)
_TAKE_COMPACTION: Final = psycopg_form(tables.DELETE_COMPACTION) + " RETURNING compaction"
_UPSERT_NODE: Final = psycopg_form(tables.UPSERT_NODE).replace("%(now_ms)s", "topicsd_shared_now_ms()")
_DELETE_NODE: Final = psycopg_form(tables.DELETE_NODE)
_DELETE_DEAD_NODES: Final = tables.DELETE_DEAD_NODES.replace(":now_ms", "topicsd_shared_now_ms()")
_SELECT_NODES: Final = tables.SELECT_NODES.replace(":now_ms", "topicsd_shared_now_ms()")
# The time is asked once, by a subquery: a function that is asked for each row uses no index. The order keeps
# the plan to the index while statistics are old. Rows that a commit uses now are for the next heartbeat.
_DELETE_OLD_PARTS: Final = (
    "DELETE FROM topicsd_shared_parts WHERE ctid = ANY (ARRAY(SELECT ctid FROM topicsd_shared_parts"
    " WHERE committed_ms < (SELECT topicsd_shared_now_ms()) - %s ORDER BY committed_ms"
    f" LIMIT {tables.OLD_PARTS_AT_ONCE} FOR UPDATE SKIP LOCKED))"
)
_DELETE_OLD_MARKS: Final = (
    "DELETE FROM topicsd_shared_condemned WHERE ctid = ANY (ARRAY(SELECT ctid FROM topicsd_shared_condemned"
    " WHERE condemned_ms < (SELECT topicsd_shared_now_ms()) - %s ORDER BY condemned_ms"
    f" LIMIT {tables.OLD_PARTS_AT_ONCE} FOR UPDATE SKIP LOCKED))"
)
_LOCK_KEYS: Final = (
    "SELECT pg_advisory_xact_lock(lock) FROM"
    " (SELECT DISTINCT hashtextextended(key, 0) AS lock FROM unnest(%s::text[]) AS key ORDER BY lock) locks"
)
_CONDEMN: Final = (
    "INSERT INTO topicsd_shared_condemned (key, condemned_ms)"
    " SELECT DISTINCT k.key, topicsd_shared_now_ms() FROM unnest(%s::text[]) AS k (key)"
    " WHERE NOT EXISTS (SELECT 1 FROM topicsd_shared_extents e WHERE e.key = k.key) ON CONFLICT DO NOTHING"
)
_SELECT_CONDEMNED: Final = "SELECT key FROM topicsd_shared_condemned WHERE key = ANY (%s)"

_compactions = msgspec.json.Decoder(Compaction)
_nodes = msgspec.json.Decoder(BrokerNode)


class PostgresqlSharedCatalog:
    """A catalog in a database, which is connected to at once."""

    def __init__(
        self,
        url: str,
        retries: Retries,
        producers_max: int = PRODUCERS_MAX,
        repeated_ms: int = REPEATED_MS,
    ) -> None:
        self._database = PostgresqlDatabase(url, retries)
        self._publisher = HeadPublisher(self._database)
        self._producers_max = producers_max
        self._repeated_ms = repeated_ms

    @property
    def url(self) -> str:
        return self._database.url

    def close(self) -> None:
        self._publisher.close()
        self._database.close()

    def catalog_id(self) -> str:
        return str(self._database.select(tables.SELECT_ID, {})[0][0])

    # -- topics

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        new = asdict(SharedTopic(name, incarnation, "OPEN", 0, 0, 0, 0, 0, config, 1))

        def work(db: Connection[Any]) -> SharedTopic:
            with db.pipeline():
                db.execute(_CREATE_TOPIC, new)
                cursor = db.execute(_SELECT_TOPIC, {"name": name})
            topic = _topic(cursor)
            if topic is None:
                raise CatalogUnavailable(f"{self.url}: topic {name} changed at the same time")
            return topic

        topic = self._database.run(work)
        if topic.incarnation != incarnation:
            raise TopicExists(name)
        return topic

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        names = names[:TOPICS_AT_ONCE]
        rows = self._database.run(lambda db: db.execute(_SELECT_NAMED, ([*names],)).fetchall())
        by_name = {topic.name: topic for topic in map(tables.topic_row, rows)}
        return [by_name.get(name) for name in names]

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
        def work(db: Connection[Any]) -> None:
            topic = self._lock(db, name)
            with db.pipeline():
                if topic is not None and topic.incarnation == incarnation:
                    for statement in _FORGET:
                        db.execute(statement, {"name": name})
                db.execute("COMMIT")

        self._database.run(work)

    def _lock(self, db: Connection[Any], name: str) -> SharedTopic | None:
        """Begin a transaction that has the lock on a topic."""
        with db.pipeline():
            db.execute(BEGIN)
            cursor = db.execute(_LOCK_TOPIC, {"name": name})
        return _topic(cursor)

    def _change(
        self,
        name: str,
        incarnation: int,
        decide: Callable[[SharedTopic], SharedTopic],
        trims: bool = False,
    ) -> SharedTopic | None:
        """Replace the row of a topic by what `decide` makes of it; `trims` removes extents too."""

        def work(db: Connection[Any]) -> SharedTopic | None:
            topic = self._lock(db, name)
            changed = None
            if topic is not None and topic.incarnation == incarnation:
                changed = decide(topic)
            with db.pipeline():
                if changed is not None and changed != topic:
                    db.execute(_UPDATE_TOPIC, asdict(changed))
                    if trims:
                        db.execute(_DELETE_EXTENTS_BEFORE, {"name": name, "first_seq": changed.first_seq})
                db.execute("COMMIT")
            return changed

        return self._database.run(work)

    # -- writes

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        order = sorted(range(len(slices)), key=lambda number: slices[number].topic)
        columns: list[list[Any]] = [[] for _ in range(10)]
        for number in order:
            one, offset = slices[number], slices[number].byte_offset
            for part in one.parts:
                producer = part.producer or (None, None, None)
                row = (one.topic, one.incarnation, offset, part.byte_length, part.count, part.append_id)
                for column, value in zip(columns, (*row, part.digest, *producer), strict=True):
                    column.append(value)
                offset += part.byte_length
        parameters = (key, encoding, self._repeated_ms, PRODUCER_KEPT_MS, self._producers_max, *columns)
        rows = iter(self._database.run(lambda db: db.execute(_COMMIT, parameters).fetchall()))
        results: list[list[PartResult]] = [[] for _ in slices]
        for number in order:
            results[number] = [PartResult(*next(rows)) for _ in slices[number].parts]
        self._publisher.publish(slices, results)
        return results

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        page = {"name": name, "seq": seq, "limit": min(limit, EXTENTS_AT_ONCE)}
        rows = self._database.select(_SELECT_EXTENTS_FROM, page)
        return [tables.extent_row(one) for one in rows]

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        names = [name for name, _ in topics]
        rows = self._database.run(lambda db: db.execute(_SELECT_HEADS, (names,)).fetchall())
        heads = {(name, incarnation): head for name, incarnation, head in rows}
        return [heads.get(topic, -1) for topic in topics]

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> PostgresqlHeadListener:
        return PostgresqlHeadListener(self._database, on_notices)

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        def decide(topic: SharedTopic) -> SharedTopic:
            deleted_to, evicted_to = tables.trimmed(topic, to_seq, reason)
            return replace(topic, deleted_to=deleted_to, evicted_to=evicted_to)

        return self._change(name, incarnation, decide, trims=True)

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        def work(db: Connection[Any]) -> Claim | None:
            with db.pipeline():
                db.execute(BEGIN)
                # Claims of one topic take turns by the lock on it.
                topic = db.execute(_LOCK_TOPIC, {"name": name})
                holder = db.execute(_SELECT_CLAIM, {"topic": name})
                now = db.execute(_NOW)
            claim = None
            if _topic(topic) is not None:
                claim = tables.claimed(_claim(holder), name, compactor, lease_ms, _value(now))
            with db.pipeline():
                if claim is not None:
                    db.execute(_UPSERT_CLAIM, asdict(claim))
                db.execute("COMMIT")
            return claim

        return self._database.run(work)

    def release(self, claim: Claim) -> None:
        one = {"topic": claim.topic, "compactor": claim.compactor}
        self._database.run(lambda db: db.execute(_DELETE_CLAIM, one))

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        name, new = compaction.topic, compaction.extent

        def work(db: Connection[Any]) -> None:
            with db.pipeline():
                db.execute(BEGIN)
                db.execute(_LOCK_KEYS, ([new.key],))
                topic = db.execute(_LOCK_TOPIC, {"name": name})
                holder = db.execute(_SELECT_CLAIM, {"topic": name})
                recorded = db.execute(_SELECT_COMPACTION, {"name": name})
                last = db.execute(_SELECT_EXTENTS_FROM, {"name": name, "seq": new.last_seq, "limit": 1})
                condemned = db.execute(_SELECT_CONDEMNED, ([new.key],))
                now = db.execute(_NOW)
            now_ms, row = _value(now), _topic(topic)
            if not tables.is_claimed(_claim(holder), claim.compactor, now_ms):
                raise ClaimLost(name)
            if row is None or row.incarnation != compaction.incarnation:
                raise CompactionRefused(f"topic {name}: there is no such topic")
            is_done = any(tables.extent_row(one).key == new.key for one in last)
            is_done |= any(
                _compactions.decode(one).compaction_id == compaction.compaction_id for (one,) in recorded
            )
            if not is_done and condemned.fetchone() is not None:
                raise CompactionRefused(f"topic {name}: the object {new.key} was condemned")
            page = {
                "name": name,
                "after": replaced_after(row.compacted_to, new.first_seq),
                "last_seq": new.last_seq,
            }
            if not is_done:
                present = [tables.extent_row(one) for one in db.execute(_SELECT_EXTENTS_TO, page)]
                check_compaction(compaction, present, row.compacted_to, now_ms, self._repeated_ms)
            with db.pipeline():
                if not is_done:
                    _replace_extents(db, row, compaction)
                db.execute("COMMIT")

        self._database.run(work)

    def finish_compaction(self, name: str) -> Compaction | None:
        rows = self._database.select(_TAKE_COMPACTION, {"name": name})
        return _compactions.decode(rows[0][0]) if rows else None

    def condemn(self, keys: Sequence[str]) -> set[str]:
        def work(db: Connection[Any]) -> set[str]:
            with db.pipeline():
                db.execute(BEGIN)
                db.execute(_LOCK_KEYS, ([*keys],))
                db.execute(_CONDEMN, ([*keys],))
                condemned = db.execute(_SELECT_CONDEMNED, ([*keys],))
                db.execute("COMMIT")
            return {key for (key,) in condemned.fetchall()}

        return self._database.run(work)

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        beat = {"name": node.name, "node": msgspec.json.encode(node), "expire_ms": expire_ms}

        def work(db: Connection[Any]) -> None:
            with db.pipeline():
                db.execute(_UPSERT_NODE, beat)
            with db.pipeline():
                db.execute(_DELETE_DEAD_NODES)
                # Here, since each node does it regularly and none waits for it.
                db.execute(_DELETE_OLD_PARTS, (self._repeated_ms,))
                db.execute(_DELETE_OLD_MARKS, (CONDEMNED_MS,))

        self._database.run(work)

    def leave(self, name: str) -> None:
        self._database.run(lambda db: db.execute(_DELETE_NODE, {"name": name}))

    def nodes(self) -> list[BrokerNode]:
        rows = self._database.run(lambda db: db.execute(_SELECT_NODES).fetchall())
        return [replace(_nodes.decode(node), age_ms=age_ms) for node, age_ms in rows]

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, TOPICS_AT_ONCE)}
        return [tables.topic_row(one) for one in self._database.select(_SELECT_TOPICS, page)]


def _replace_extents(db: Connection[Any], topic: SharedTopic, compaction: Compaction) -> None:
    name, new = topic.name, compaction.extent
    between = {"name": name, "first_seq": new.first_seq, "last_seq": new.last_seq}
    db.execute(_DELETE_EXTENTS_BETWEEN, between)
    db.execute(_INSERT_EXTENT, {"topic": name, **asdict(new)})
    db.execute(_UPDATE_TOPIC, asdict(replace(topic, compacted_to=max(topic.compacted_to, new.last_seq))))
    record = {"topic": name, "compaction": msgspec.json.encode(compaction)}
    db.execute(_UPSERT_COMPACTION, record)


def _topic(cursor: Cursor[Any]) -> SharedTopic | None:
    values = cursor.fetchone()
    return None if values is None else tables.topic_row(values)


def _claim(cursor: Cursor[Any]) -> Claim | None:
    values = cursor.fetchone()
    return None if values is None else tables.claim_row(values)


def _value(cursor: Cursor[Any]) -> Any:
    values = cursor.fetchone()
    assert values is not None
    return values[0]
