"""A catalog of local topics in one SQLite file, for the processes of one machine: `sqlite:///path`.

Each verb is one transaction, also `create_all` (Q1 in `topicsd/catalog/engines/sqlite_file.py`). The row is
read first, since it decides everything else, and a fenced node reads no extents.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from topicsd.catalog import row_changes, sql_tables
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    Extent,
    Fenced,
    Lookup,
    NewTopic,
    Ownership,
    TopicRow,
)
from topicsd.catalog.engines.sqlite_file import SqliteFile
from topicsd.catalog.engines.sqlite_schema import UPGRADES
from topicsd.catalog.row_verbs import RowVerbs


class SqliteCatalog(RowVerbs):
    """A catalog in a file, which is created with its tables if it does not exist."""

    def __init__(
        self,
        path: str,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        upgrades: Sequence[Sequence[str]] = UPGRADES,
    ) -> None:
        self._file = SqliteFile(path, connect, upgrades)

    @property
    def url(self) -> str:
        return self._file.url

    def close(self) -> None:
        self._file.close()

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        with self._file.change() as db:
            return _create(db, NewTopic(name, topic_id, incarnation, ceiling), node)

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        rows: list[TopicRow | Fenced] = []
        # One transaction, since each has a sync.
        with self._file.change() as db:
            for one in new:
                try:
                    rows.append(_create(db, one, node))
                except Fenced as fenced:
                    rows.append(fenced)
        return rows

    def own(self, name: str, ownership: Ownership) -> Lookup:
        with self._file.read() as db:
            row = _row(db, name)
        return row_changes.looked_up(row, ownership)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        first, last = row_changes.changed_range(add, remove)
        with self._file.change() as db:
            row = row_changes.check_fence(_row(db, name), name, ownership)
            between = {"name": name, "first": first, "last": last}
            present = _extents(db, sql_tables.SELECT_EXTENTS_BETWEEN, between)
            change = row_changes.published(row, name, ownership, present, add, remove)
            # Removals first: a merged extent has the key of the first one that it replaces.
            db.executemany(
                sql_tables.DELETE_EXTENT,
                [{"topic": name, "first_seq": extent.first_seq} for extent in change.remove],
            )
            db.executemany(
                sql_tables.INSERT_EXTENT,
                [sql_tables.extent_parameters(name, extent) for extent in change.add],
            )
            if change.row != row:
                db.execute(sql_tables.UPDATE_TOPIC, sql_tables.topic_parameters(change.row))
        return change.row

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        with self._file.read() as db:
            return _extents(
                db,
                sql_tables.SELECT_EXTENTS_FROM,
                {"name": name, "first": seq, "limit": min(limit, EXTENTS_AT_ONCE)},
            )

    def forget(self, name: str, ownership: Ownership) -> None:
        with self._file.change() as db:
            row = _row(db, name)
            row_changes.check_forget(row, name, ownership)
            if row_changes.leaves_mark(row):
                one = {"name": name, "incarnation": ownership.incarnation}
                db.execute(sql_tables.INSERT_FORGOTTEN, one)
            db.execute(sql_tables.DELETE_EXTENTS, {"name": name})
            db.execute(sql_tables.DELETE_TOPIC, {"name": name})

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, ROWS_AT_ONCE)}
        with self._file.read() as db:
            values = db.execute(sql_tables.SELECT_TOPICS, page).fetchall()
        return [sql_tables.topic_row(one) for one in values]

    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Replace the row of a topic by what `decide` makes of it, in one transaction."""
        with self._file.change() as db:
            row = _row(db, name)
            changed = decide(row)
            _write(db, row, changed)
        return changed


def _create(db: sqlite3.Connection, new: NewTopic, node: str) -> TopicRow:
    name, topic_id, incarnation, ceiling = new
    row = _row(db, name)
    one = {"name": name, "incarnation": incarnation}
    is_forgotten = row is None and db.execute(sql_tables.SELECT_FORGOTTEN, one).fetchone()[0] > 0
    changed = row_changes.created(row, name, topic_id, incarnation, node, ceiling, is_forgotten)
    _write(db, row, changed)
    return changed


def _row(db: sqlite3.Connection, name: str) -> TopicRow | None:
    values = db.execute(sql_tables.SELECT_TOPIC, {"name": name}).fetchone()
    return None if values is None else sql_tables.topic_row(values)


def _extents(db: sqlite3.Connection, statement: str, parameters: dict[str, Any]) -> list[Extent]:
    return [sql_tables.extent_row(one) for one in db.execute(statement, parameters).fetchall()]


def _write(db: sqlite3.Connection, row: TopicRow | None, changed: TopicRow) -> None:
    if changed != row:
        statement = sql_tables.INSERT_TOPIC if row is None else sql_tables.UPDATE_TOPIC
        db.execute(statement, sql_tables.topic_parameters(changed))
