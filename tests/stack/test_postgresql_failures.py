"""PostgreSQL that restarts, ends connections, or keeps a lock: verbs wait, are repeated, or say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from shared.runtime.retries import Retries
from tests.stack.servers import PostgresServer, postgres_server
from topicsd.catalog.catalog import CatalogRefused, CatalogUnavailable, Extent, Ownership
from topicsd.catalog.engines import postgresql_database
from topicsd.catalog.engines.postgresql_schema import UPGRADES
from topicsd.catalog.postgresql_catalog import PostgresqlCatalog
from topicsd.catalog.shared.postgresql_shared import PostgresqlSharedCatalog
from topicsd.catalog.shared.shared_catalog import Part, Slice

POLICY = Retries(time.monotonic, time.sleep, 20.0)
SHORT = Retries(time.monotonic, time.sleep, 0.3)
A = Ownership("a", 1, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def test_a_server_that_is_away_is_unavailable_and_comes_back(server: PostgresServer) -> None:
    url = server.new_database("restarts")
    catalog, impatient = PostgresqlCatalog(url, POLICY), PostgresqlCatalog(url, SHORT)
    catalog.create("t", 1, 1, "a", 10)
    server.stop()
    with pytest.raises(CatalogUnavailable, match=rf"^postgresql://127.0.0.1:{server.port}/restarts: "):
        impatient.raise_ceiling("t", A, 20)
    starting = threading.Timer(0.2, server.start)
    starting.start()
    assert catalog.raise_ceiling("t", A, 30).ceiling == 30
    starting.join()
    assert impatient.own("t", A).is_owner
    for one in (catalog, impatient):
        one.close()


def test_a_server_that_hangs_is_unavailable_and_answers_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_database, "ANSWER_SECONDS", 0.5)
    catalog = PostgresqlCatalog(server.new_database("hangs"), SHORT)
    catalog.create("t", 1, 1, "a", 10)
    server.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(CatalogUnavailable, match=r"no answer within 0[.]5 s"):
            catalog.raise_ceiling("t", A, 20)
        assert time.monotonic() - started < 5
    finally:
        server.thaw()
    assert catalog.raise_ceiling("t", A, 30).ceiling == 30
    assert catalog.publish_extents("t", A, [Extent(1, 9, (), 0, 0, 1)], []).exported_to == 9
    catalog.close()


def test_verbs_whose_connections_are_ended_are_repeated(server: PostgresServer) -> None:
    """A thread ends all connections again and again, so that answers of commits are lost."""
    url = server.new_database("ended")
    catalog = PostgresqlCatalog(url, POLICY)
    catalog.create("t", 1, 1, "a", 1000)
    done = threading.Event()

    def end_connections() -> None:
        with psycopg.connect(server.url("postgres"), autocommit=True) as db:
            while not done.wait(0.03):
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ended'")

    ending = threading.Thread(target=end_connections)
    ending.start()
    try:
        for seq in range(1, 101):
            row = catalog.publish_extents("t", A, [Extent(seq, seq, (), 0, 0, 1)], [])
            assert row.exported_to == seq
    finally:
        done.set()
        ending.join()
    assert [one.first_seq for one in catalog.extents_from("t", 50, 200)] == [*range(50, 101)]
    catalog.close()


def test_commits_whose_connections_are_ended_are_made_once(server: PostgresServer) -> None:
    url = server.new_database("ended_commits")
    catalog = PostgresqlSharedCatalog(url, POLICY)
    catalog.create("t", 1, b"{}")
    done = threading.Event()

    def end_connections() -> None:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ended_commits'"
        with psycopg.connect(server.url("postgres"), autocommit=True) as db:
            while not done.wait(0.02):
                db.execute(end)

    ending = threading.Thread(target=end_connections)
    ending.start()
    try:
        for number in range(1, 151):
            slices = [Slice("t", 1, 50, (Part(f"a{number}", 1, 9),))]
            ((result,),) = catalog.commit(f"blob-{number}", "frames-v1", slices)
            assert result.status in ("committed", "repeated")
            assert (result.first_seq, result.last_seq) == (number, number)
    finally:
        done.set()
        ending.join()
    extents = catalog.extents_from("t", 0, 256)
    assert [(one.first_seq, one.key) for one in extents] == [(n, f"blob-{n}") for n in range(1, 151)]
    catalog.close()


def test_a_refusal_is_not_retried_and_names_the_reason(server: PostgresServer) -> None:
    started = time.monotonic()
    with pytest.raises(CatalogRefused, match='database "missing" does not exist'):
        PostgresqlCatalog(server.url("missing"), POLICY)
    assert time.monotonic() - started < POLICY.seconds / 2


def test_a_newer_schema_is_refused_and_an_older_one_is_upgraded(server: PostgresServer) -> None:
    url = server.new_database("schemas")
    PostgresqlCatalog(url, POLICY).close()
    PostgresqlCatalog(url, POLICY, (*UPGRADES, ("CREATE TABLE more (a int)",))).close()
    newest = len(UPGRADES)
    with pytest.raises(CatalogRefused, match=f"with schema {newest + 1}; this one knows schema {newest}"):
        PostgresqlCatalog(url, POLICY)


def test_commits_are_synced_whatever_the_default_of_the_server_is(server: PostgresServer) -> None:
    url = server.new_database("careless")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER DATABASE careless SET synchronous_commit = off")
    statements = (
        "CREATE TABLE seen AS SELECT current_setting('synchronous_commit') AS commits,"
        " current_setting('idle_in_transaction_session_timeout') AS idle",
    )
    PostgresqlCatalog(url, POLICY, (*UPGRADES, statements)).close()
    with psycopg.connect(url) as db:
        assert db.execute("SELECT commits, idle FROM seen").fetchone() == ("on", "5s")


def test_a_node_that_is_frozen_in_a_transaction_does_not_keep_its_topic(server: PostgresServer) -> None:
    url = server.new_database("frozen")
    catalog = PostgresqlCatalog(url, POLICY)
    catalog.create("t", 1, 1, "a", 10)
    # Not as a context, which would commit a transaction that the server has ended.
    with closing(psycopg.connect(url)) as frozen:
        frozen.execute("SET idle_in_transaction_session_timeout = '500ms'")
        frozen.execute("SELECT * FROM topicsd_topics WHERE name = 't' FOR UPDATE")
        assert catalog.adopt("t", "b", 1, 1, accept_loss=True).owner == "b"
    catalog.close()
