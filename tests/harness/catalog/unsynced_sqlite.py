"""A SQLite connection without syncs, for tests that make thousands of commits and cut no power."""

from __future__ import annotations

import sqlite3
from typing import Any


class UnsyncedConnection(sqlite3.Connection):
    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA synchronous"):
            statement = "PRAGMA synchronous = OFF"
        return super().execute(statement, *parameters)


def connect_unsynced(path: str, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(path, factory=UnsyncedConnection, **options)
