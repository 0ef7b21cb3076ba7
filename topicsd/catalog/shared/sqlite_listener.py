"""Commits to a SQLite catalog, as the processes of one machine notice them: by a look at the file.

`PRAGMA data_version` changes when another connection has committed. It takes about ten microseconds, so a
look each LOOK_SECONDS costs little, and no process has to send anything.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE, HeadNotice

LOOK_SECONDS: Final = 0.01
TOPIC_SECONDS: Final = 30e-6
"""The pause for each topic, ten times what it takes to read one."""
PAUSE_SECONDS: Final = 1.0


class SqliteHeadListener:
    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        on_notices: Callable[[Sequence[HeadNotice]], object],
    ) -> None:
        """`connect` opens a connection of its own: the changes of one are not new to itself."""
        self._connect = connect
        self._on_notices = on_notices
        self._names: frozenset[str] = frozenset()
        self._is_closed = threading.Event()
        self._has_names = threading.Event()
        threading.Thread(target=self._run, name="sqlite-listener", daemon=True).start()

    def follow(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        if names:
            self._has_names.set()
        else:
            self._has_names.clear()

    def close(self) -> None:
        self._is_closed.set()
        self._has_names.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            with suppress(sqlite3.Error):
                db = self._connect()
                try:
                    self._look_on(db)
                finally:
                    db.close()
            self._is_closed.wait(PAUSE_SECONDS)

    def _look_on(self, db: sqlite3.Connection) -> None:
        known: dict[str, HeadNotice] = {}
        version, names = -1, frozenset[str]()
        while not self._is_closed.is_set():
            self._has_names.wait()
            # The version before the heads: a commit in between is found by the next look.
            before = version, names
            version, names = db.execute("PRAGMA data_version").fetchone()[0], self._names
            if (version, names) != before:
                present = _heads(db, sorted(names))
                changed = [one for name, one in present.items() if known.get(name) != one]
                known = present
                if changed:
                    self._on_notices(changed)
            self._is_closed.wait(max(LOOK_SECONDS, len(names) * TOPIC_SECONDS))


def _heads(db: sqlite3.Connection, names: Sequence[str]) -> dict[str, HeadNotice]:
    """Return the heads of topics by name; of those that do not exist, notices without a head."""
    present = {name: HeadNotice(name) for name in names}
    for at in range(0, len(names), TOPICS_AT_ONCE):
        some = names[at : at + TOPICS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        statement = f"SELECT name, incarnation, head FROM topicsd_shared_topics WHERE name IN ({marks})"
        present.update((row[0], HeadNotice(*row)) for row in db.execute(statement, some))
    return present
