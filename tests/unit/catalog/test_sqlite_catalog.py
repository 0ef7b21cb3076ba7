"""The SQLite file: its schema, its failures in one sentence, and kills between its statements."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.harness.catalog.unsynced_sqlite import connect_unsynced
from topicsd.catalog.catalog import CatalogRefused, CatalogUnavailable, Lookup, NewTopic, Ownership
from topicsd.catalog.engines.sqlite_schema import UPGRADES
from topicsd.catalog.sqlite_catalog import SqliteCatalog

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "catalog.sqlite")


def test_a_file_outlives_its_process_and_is_synced(path: str) -> None:
    catalog = SqliteCatalog(path)
    row = catalog.create("t", (1 << 64) - 1, 3, "a", 10)
    catalog.close()
    again = SqliteCatalog(path)
    assert again.own("t", Ownership("a", 3, 1)) == Lookup(row, True)
    assert again.own("t", Ownership("b", 3, 1)) == Lookup(row, False)
    assert again.url == f"sqlite://{path}"
    again.close()


def test_the_files_are_not_readable_for_all(path: str) -> None:
    catalog = SqliteCatalog(path)
    catalog.create("t", 1, 3, "a", 10)
    files = sorted(Path(path).parent.iterdir())
    assert [one.name for one in files] == ["catalog.sqlite", "catalog.sqlite-shm", "catalog.sqlite-wal"]
    assert {oct(one.stat().st_mode & 0o007) for one in files} == {"0o0"}
    catalog.close()


def test_every_connection_syncs_its_commits(path: str) -> None:
    connections: list[sqlite3.Connection] = []

    def connect(name: str, **options: Any) -> sqlite3.Connection:
        connections.append(sqlite3.connect(name, **options))
        return connections[-1]

    catalog = SqliteCatalog(path, connect)
    assert connections[0].execute("PRAGMA synchronous").fetchone() == (2,)
    assert connections[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    catalog.close()


def test_many_topics_are_created_in_one_transaction(path: str) -> None:
    statements: list[str] = []

    def connect(name: str, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(name, **options)
        connection.set_trace_callback(statements.append)
        return connection

    catalog = SqliteCatalog(path, connect)
    statements.clear()
    rows = catalog.create_all([NewTopic(f"t{number}", number, 1, 10) for number in range(100)], "a")
    assert len(rows) == len(catalog.list("", "", 1000)) == 100
    assert statements.count("COMMIT") == 1
    catalog.close()


def test_an_older_schema_is_upgraded_and_a_newer_one_is_refused(path: str) -> None:
    SqliteCatalog(path).close()
    newer = (*UPGRADES, ("ALTER TABLE topicsd_topics ADD COLUMN colour TEXT", "CREATE TABLE more (a)"))
    SqliteCatalog(path, upgrades=newer).close()
    with sqlite3.connect(path) as file:
        file.execute("INSERT INTO more VALUES (1)")
        file.execute("SELECT colour FROM topicsd_topics")
    file.close()
    with pytest.raises(
        CatalogRefused, match="newer version of topicsd, with schema 6; this one knows schema 5"
    ):
        SqliteCatalog(path)


def test_an_upgrade_that_fails_changes_nothing(path: str) -> None:
    SqliteCatalog(path).close()
    broken = (*UPGRADES, ("CREATE TABLE more (a)", "CREATE TABLE more (a)"))
    with pytest.raises(CatalogRefused, match="already exists"):
        SqliteCatalog(path, upgrades=broken)
    SqliteCatalog(path).close()


def test_a_full_disk_is_one_sentence_and_passes(path: str) -> None:
    connections: list[sqlite3.Connection] = []

    def connect(name: str, **options: Any) -> sqlite3.Connection:
        connections.append(connect_unsynced(name, **options))
        return connections[-1]

    catalog = SqliteCatalog(path, connect)
    connections[0].execute("PRAGMA max_page_count = 1")
    with pytest.raises(CatalogUnavailable, match=f"^sqlite://{re.escape(path)}: the disk is full$"):
        create_topics(catalog, 1000)
    before = catalog.list("", "", 1000)
    connections[0].execute("PRAGMA max_page_count = 100000")
    catalog.create("z", 1, 1, "a", 0)
    assert [row.name for row in catalog.list("", "", 1000)] == [*(row.name for row in before), "z"]
    catalog.close()


def create_topics(catalog: SqliteCatalog, count: int) -> None:
    for number in range(count):
        catalog.create(f"topic-{number}", number, 1, "a", 0)


def test_a_file_that_cannot_be_written_or_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogRefused, match=r"no/such/file: .*unable to open|no/such"):
        SqliteCatalog(str(tmp_path / "no" / "such" / "file"))
    (tmp_path / "text").write_text("This is a text and not a database, whatever its name may say. " * 20)
    with pytest.raises(CatalogRefused, match=r"text: the file is not a SQLite database$"):
        SqliteCatalog(str(tmp_path / "text"))


def test_a_read_only_file_is_refused_with_its_path(path: str) -> None:
    SqliteCatalog(path).close()

    def connect(name: str, **options: Any) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{name}?mode=ro", uri=True, **options)

    catalog = SqliteCatalog(path, connect)
    with pytest.raises(CatalogRefused, match=f"^sqlite://{re.escape(path)}: .*readonly"):
        catalog.create("t", 1, 1, "a", 0)
    catalog.close()


def test_a_file_that_another_process_keeps_locked_is_unavailable(path: str) -> None:
    def connect(name: str, **options: Any) -> sqlite3.Connection:
        return connect_unsynced(name, **{**options, "timeout": 0.01})

    catalog = SqliteCatalog(path, connect)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CatalogUnavailable, match="locked by another process"):
        catalog.create("t", 1, 1, "a", 0)
    assert catalog.list("", "", 10) == []
    other.execute("ROLLBACK")
    other.close()
    catalog.create("t", 1, 1, "a", 0)
    catalog.close()


def test_many_openers_of_a_new_file_make_one_schema(path: str) -> None:
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            catalog = SqliteCatalog(path, connect_unsynced)
            catalog.create(f"t{number}", number, 1, "a", 0)
            catalog.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    catalog = SqliteCatalog(path)
    assert len(catalog.list("", "", 100)) == 8
    catalog.close()


@pytest.mark.slow
def test_a_kill_between_any_two_statements_leaves_whole_verbs(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.harness.catalog.catalog_crash", str(tmp_path)]
    result = subprocess.run(
        program,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 40
