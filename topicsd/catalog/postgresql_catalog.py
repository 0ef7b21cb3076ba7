"""A catalog of local topics in PostgreSQL, for many nodes: `postgresql://host/database`, through psycopg.

P1  A change of several statements locks the row of its topic first (`SELECT … FOR UPDATE`), and reads
    extents in a later statement, which sees what the previous holder of the lock committed. Each verb locks
    one row, so there is no deadlock between verbs. The last statement is the COMMIT, in the same round trip
    as the writes.
P2  A change is two round trips: lock and read, then write and commit. `create` and `raise_ceiling` are one
    round trip when they succeed, and go the other way to find the reason when they do not. Reads are one
    statement. `create` looks for a forgotten topic (K6) in a statement after the one that inserts the row:
    it sees what was committed before the name was free.

`topicsd/catalog/engines/postgresql_database.py` has the connections and P3 to P7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from shared.runtime.retries import Retries
from topicsd.catalog import row_changes, sql_tables
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    CatalogUnavailable,
    Extent,
    Fenced,
    Lookup,
    Ownership,
    TopicRow,
)
from topicsd.catalog.engines.postgresql_database import BEGIN, PostgresqlDatabase, psycopg_form
from topicsd.catalog.engines.postgresql_schema import UPGRADES
from topicsd.catalog.row_verbs import RowVerbs

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

_SELECT_TOPIC: Final = psycopg_form(sql_tables.SELECT_TOPIC)
_LOCK_TOPIC: Final = f"{_SELECT_TOPIC} FOR UPDATE"
_SELECT_TOPICS: Final = psycopg_form(sql_tables.SELECT_TOPICS)
_INSERT_TOPIC: Final = psycopg_form(sql_tables.INSERT_TOPIC)
_CREATE_TOPIC: Final = f"{_INSERT_TOPIC} ON CONFLICT DO NOTHING"
_DELETE_FORGOTTEN: Final = psycopg_form(
    "DELETE FROM topicsd_topics WHERE name = :name AND incarnation = :incarnation AND EXISTS"
    " (SELECT 1 FROM topicsd_forgotten WHERE name = :name AND incarnation = :incarnation)"
)
_INSERT_FORGOTTEN: Final = psycopg_form(sql_tables.INSERT_FORGOTTEN)
_UPDATE_TOPIC: Final = psycopg_form(sql_tables.UPDATE_TOPIC)
_DELETE_TOPIC: Final = psycopg_form(sql_tables.DELETE_TOPIC)
_SELECT_EXTENTS_FROM: Final = psycopg_form(sql_tables.SELECT_EXTENTS_FROM)
_SELECT_EXTENTS_BETWEEN: Final = psycopg_form(sql_tables.SELECT_EXTENTS_BETWEEN)
_INSERT_EXTENT: Final = psycopg_form(sql_tables.INSERT_EXTENT)
_DELETE_EXTENT: Final = psycopg_form(sql_tables.DELETE_EXTENT)
_DELETE_EXTENTS: Final = psycopg_form(sql_tables.DELETE_EXTENTS)
_RAISE_CEILING: Final = psycopg_form(
    "UPDATE topicsd_topics SET ceiling = greatest(ceiling, :ceiling) WHERE name = :name AND owner = :node"
    " AND incarnation = :incarnation AND owner_epoch = :owner_epoch AND state = 'owned'"
    f" RETURNING {', '.join(sql_tables.TOPIC_COLUMNS)}"
)


class PostgresqlCatalog(RowVerbs):
    """A catalog in a database, which is connected to at once."""

    def __init__(self, url: str, retries: Retries, upgrades: Sequence[Sequence[str]] = UPGRADES) -> None:
        self._database = PostgresqlDatabase(url, retries, upgrades)

    @property
    def url(self) -> str:
        return self._database.url

    def close(self) -> None:
        self._database.close()

    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Replace the row of a topic by what `decide` makes of it."""

        def work(db: Connection[Any]) -> TopicRow:
            with db.pipeline():
                db.execute(BEGIN)
                cursor = db.execute(_LOCK_TOPIC, {"name": name})
            row = _row(cursor)
            changed = decide(row)
            with db.pipeline():
                if changed != row:
                    statement = _INSERT_TOPIC if row is None else _UPDATE_TOPIC
                    db.execute(statement, sql_tables.topic_parameters(changed))
                db.execute("COMMIT")
            return changed

        return self._database.run(work)

    # -- verbs

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        row = row_changes.created(None, name, topic_id, incarnation, node, ceiling)
        parameters = sql_tables.topic_parameters(row)

        def work(db: Connection[Any]) -> tuple[int, int]:
            with db.pipeline():
                db.execute(BEGIN)
                inserted = db.execute(_CREATE_TOPIC, parameters)
                removed = db.execute(_DELETE_FORGOTTEN, {"name": name, "incarnation": incarnation})
                db.execute("COMMIT")
            return inserted.rowcount, removed.rowcount

        def decide(present: TopicRow | None) -> TopicRow:
            if present is None:
                raise CatalogUnavailable(f"{self.url}: topic {name} changed at the same time")
            return row_changes.created(present, name, topic_id, incarnation, node, ceiling)

        inserted, removed = self._database.run(work)
        if removed:
            raise Fenced(name, None)
        return row if inserted else self._change(name, decide)

    def own(self, name: str, ownership: Ownership) -> Lookup:
        rows = self._database.select(_SELECT_TOPIC, {"name": name})
        return row_changes.looked_up(sql_tables.topic_row(rows[0]) if rows else None, ownership)

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        rows = self._database.select(
            _RAISE_CEILING, {"name": name, "ceiling": ceiling, **ownership._asdict()}
        )
        if rows:
            return sql_tables.topic_row(rows[0])
        return super().raise_ceiling(name, ownership, ceiling)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        first, last = row_changes.changed_range(add, remove)

        def work(db: Connection[Any]) -> TopicRow:
            with db.pipeline():
                db.execute(BEGIN)
                topic = db.execute(_LOCK_TOPIC, {"name": name})
                extents = db.execute(_SELECT_EXTENTS_BETWEEN, {"name": name, "first": first, "last": last})
            present = [sql_tables.extent_row(one) for one in extents.fetchall()]
            change = row_changes.published(_row(topic), name, ownership, present, add, remove)
            with db.pipeline():
                # Removals first: a merged extent has the key of the first one that it replaces.
                for extent in change.remove:
                    db.execute(_DELETE_EXTENT, {"topic": name, "first_seq": extent.first_seq})
                for extent in change.add:
                    db.execute(_INSERT_EXTENT, sql_tables.extent_parameters(name, extent))
                if change.add or change.remove:
                    db.execute(_UPDATE_TOPIC, sql_tables.topic_parameters(change.row))
                db.execute("COMMIT")
            return change.row

        return self._database.run(work)

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        page = {"name": name, "first": seq, "limit": min(limit, EXTENTS_AT_ONCE)}
        return [sql_tables.extent_row(one) for one in self._database.select(_SELECT_EXTENTS_FROM, page)]

    def forget(self, name: str, ownership: Ownership) -> None:
        def work(db: Connection[Any]) -> None:
            with db.pipeline():
                db.execute(BEGIN)
                topic = db.execute(_LOCK_TOPIC, {"name": name})
            row = _row(topic)
            row_changes.check_forget(row, name, ownership)
            with db.pipeline():
                if row_changes.leaves_mark(row):
                    db.execute(_INSERT_FORGOTTEN, {"name": name, "incarnation": ownership.incarnation})
                db.execute(_DELETE_EXTENTS, {"name": name})
                db.execute(_DELETE_TOPIC, {"name": name})
                db.execute("COMMIT")

        self._database.run(work)

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, ROWS_AT_ONCE)}
        return [sql_tables.topic_row(one) for one in self._database.select(_SELECT_TOPICS, page)]


def _row(cursor: Cursor[Any]) -> TopicRow | None:
    values = cursor.fetchone()
    return None if values is None else sql_tables.topic_row(values)
