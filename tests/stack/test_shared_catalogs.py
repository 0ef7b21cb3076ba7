"""One suite over every kind of catalog for shared topics: they do the same."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from msgspec.structs import replace

from tests.harness.catalog.shared_crowd import PRODUCERS_MAX, SharedCrowd
from tests.harness.machine.manual_clock import ManualClock
from tests.stack.engines import POLICY, ServerClock
from tests.stack.servers import PostgresServer
from topicsd.catalog.open_catalog import open_keys
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.seed_documents import LAST, SEQ_END, TopicKeys
from topicsd.catalog.shared.seed_documents import TOPICS as TOPICS_KEY
from topicsd.catalog.shared.shared_catalog import (
    PRODUCER_KEPT_MS,
    REPEATED_MS,
    BrokerNode,
    ClaimLost,
    Compaction,
    CompactionRefused,
    Part,
    PartResult,
    Producer,
    SharedCatalog,
    SharedExtent,
    Slice,
)

_databases = itertools.count()


class Engine(NamedTuple):
    """What opens the catalog of one test, as another node would, and its clock."""

    open: Callable[[], SharedCatalog]
    clock: ManualClock


@pytest.fixture(params=["sqlite", "postgresql", "etcd", "oxia"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    opened: list[SharedCatalog] = []
    clock = ManualClock()
    if request.param == "sqlite":
        url = "sqlite:"
    elif request.param == "postgresql":
        url = request.getfixturevalue("postgresql").new_database(f"shared_{next(_databases)}")
    else:
        url = request.getfixturevalue(request.param).url
    bucket = f"s3://bucket-{next(_databases)}"

    def open_one() -> SharedCatalog:
        opened.append(open_shared_catalog(url, str(tmp_path), POLICY, clock.now_ms, bucket, PRODUCERS_MAX))
        return opened[-1]

    open_one()
    if request.param == "postgresql":
        clock = ServerClock(url)
    yield Engine(open_one, clock)
    if request.param in ("etcd", "oxia"):
        remove_all(url)
    for catalog in opened:
        catalog.close()
    if isinstance(clock, ServerClock):
        clock.close()


def test_all_nodes_see_the_one_id_of_the_catalog(engine: Engine) -> None:
    catalogs = [engine.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        ids = set(threads.map(lambda catalog: catalog.catalog_id(), catalogs))
    assert len(ids) == 1
    assert len(ids.pop()) == 32


def remove_all(url: str) -> None:
    """Empty a server of keys, which has one space of names for all tests."""
    store = open_keys(url)
    for topic in store.range(TOPICS_KEY, TOPICS_KEY + LAST, 1000):
        store.delete_if(topic.key, topic.version)
        keys = TopicKeys(topic.key[len(TOPICS_KEY) :])
        ranges = [
            (keys.index(0), keys.index(SEQ_END)),
            (keys.append(0), keys.append(SEQ_END)),
            keys.producers,
            (keys.compacted_from(0), keys.compacted_from(SEQ_END)),
            (keys.compaction, keys.control + LAST),
        ]
        for first, end in ranges:
            for entry in store.range(first, end, 10_000, keys.partition):
                store.delete_if(entry.key, entry.version, keys.partition)
    store.close()


@pytest.mark.parametrize("seed", range(2))
def test_brokers_agree_with_the_oracle_when_requests_and_answers_are_lost(engine: Engine, seed: int) -> None:
    crowd = SharedCrowd([engine.open() for _ in range(3)], seed, engine.clock)
    crowd.has_server_leases = isinstance(engine.open(), KeyValueSharedCatalog)
    crowd.run(600)


def test_brokers_that_write_one_topic_at_once_leave_no_gap(engine: Engine) -> None:
    catalogs = [engine.open() for _ in range(4)]
    catalogs[0].create("t", 7, b"{}")
    ranges: list[tuple[int, int]] = []

    def write(number: int) -> None:
        for count in range(10):
            key = f"blob-{number}-{count}"
            part = Part(key, 1 + (number + count) % 3, 10)
            other = Slice("missing", 1, 60, (Part(f"{key}-other", 1, 5),))
            results = catalogs[number].commit(key, "frames-v1", [other, Slice("t", 7, 50, (part,))])
            assert results[0][0].status == "missing"
            assert results[1][0].status in ("committed", "repeated")
            ranges.append((results[1][0].first_seq, results[1][0].last_seq))

    run_threads(write, 4)
    end = 0
    for first, last in sorted(ranges):
        assert first == end + 1
        end = last
    assert catalogs[0].heads([("t", 7)]) == [end]
    extents = catalogs[1].extents_from("t", 0, 256)
    assert [(one.first_seq, one.last_seq) for one in extents] == sorted(ranges)


def test_a_commit_of_many_topics_gives_each_its_seqs(engine: Engine) -> None:
    catalog = engine.open()
    names = [f"many-{number}" for number in range(60)]
    for name in names:
        catalog.create(name, 5, b"{}")
    slices = [Slice(name, 5, 50 + number, (Part(f"a-{name}", 3, 1),)) for number, name in enumerate(names)]
    for status in ("committed", "repeated"):
        results = catalog.commit("blob", "frames-v1", slices)
        assert results == [[PartResult(status, 1, 3)]] * 60
    assert catalog.heads([(name, 5) for name in names]) == [3] * 60


def test_a_claim_ends_when_its_compactor_says_nothing(engine: Engine) -> None:
    catalog = engine.open()
    catalog.create("t", 7, b"{}")
    claim = catalog.claim("t", "one", 2000)
    assert claim is not None
    assert catalog.claim("t", "other", 2000) is None
    assert catalog.claim("missing", "one", 2000) is None
    assert catalog.claim("t", "one", 2000) is not None
    catalog.release(claim)
    assert catalog.claim("t", "other", 60_000) is not None
    assert catalog.claim("t", "one", 2000) is None


def run_threads(work: Callable[[int], None], count: int) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_compaction_replaces_its_range_and_frees_the_old_blobs(engine: Engine) -> None:
    catalog, other = engine.open(), engine.open()
    catalog.create("t", 7, b"{}")
    for number in range(4):
        catalog.commit(f"old-{number}", "frames-v1", [Slice("t", 7, 50, (Part(f"p{number}", 2, 9),))])
    claim = catalog.claim("t", "compactor", REPEATED_MS * 2)
    assert claim is not None
    new = SharedExtent(1, 6, "COMPACTED", "new", "segment", 0, 500, 0)
    with pytest.raises(CompactionRefused):
        catalog.begin_compaction(claim, Compaction("c1", "t", 7, new))
    engine.clock.advance(REPEATED_MS)
    with pytest.raises(ClaimLost):
        catalog.begin_compaction(replace(claim, compactor="stranger"), Compaction("c1", "t", 7, new))
    assert catalog.condemn(["old-0", "orphan"]) == {"orphan"}
    for _ in range(2):
        catalog.begin_compaction(claim, Compaction("c1", "t", 7, new))
        extents = [
            (one.first_seq, one.last_seq, one.key, one.byte_length) for one in other.extents_from("t", 1, 9)
        ]
        assert extents == [(1, 6, "new", 500), (7, 8, "old-3", 9)]
    finished = other.finish_compaction("t")
    assert finished is not None
    assert finished.compaction_id == "c1"
    assert other.finish_compaction("t") is None
    assert other.condemn(["old-0", "old-1", "old-3", "new"]) == {"old-0", "old-1"}
    late = [Slice("t", 7, 50, (Part("late", 1, 5),))]
    assert catalog.commit("old-0", "frames-v1", late) == [[PartResult("condemned")]]
    assert catalog.commit("fresh", "frames-v1", late) == [[PartResult("committed", 9, 9)]]


def test_compacted_extents_are_merged_again(engine: Engine) -> None:
    catalog, other = engine.open(), engine.open()
    catalog.create("t", 7, b"{}")
    for number in range(4):
        catalog.commit(f"old-{number}", "frames-v1", [Slice("t", 7, 50, (Part(f"p{number}", 2, 9),))])
    engine.clock.advance(REPEATED_MS)
    claim = catalog.claim("t", "compactor", REPEATED_MS * 2)
    assert claim is not None

    def merge(key: str, first: int, last: int) -> None:
        new = SharedExtent(first, last, "COMPACTED", key, "segment-v1", 0, 100 + last, 0)
        catalog.begin_compaction(claim, Compaction(f"id-{key}", "t", 7, new))

    merge("one", 1, 2)
    catalog.finish_compaction("t")
    merge("two", 3, 6)
    for first, last in ((1, 2), (2, 6), (1, 5), (1, 8), (3, 8)):
        with pytest.raises(CompactionRefused):
            merge("bad", first, last)
    for _ in range(2):
        merge("both", 1, 6)
        extents = [
            (one.first_seq, one.last_seq, one.key, one.byte_length) for one in other.extents_from("t", 1, 9)
        ]
        assert extents == [(1, 6, "both", 106), (7, 8, "old-3", 9)]
    finished = other.finish_compaction("t")
    assert finished is not None
    assert finished.compaction_id == "id-both"
    (topic,) = other.topics(["t"])
    assert topic is not None
    assert topic.compacted_to == 6
    assert other.condemn(["one", "two", "both"]) == {"one", "two"}
    with pytest.raises(CompactionRefused):
        merge("one", 1, 6)


def test_nodes_are_listed_until_they_leave(engine: Engine) -> None:
    catalog = engine.open()
    node = BrokerNode("n1", "http://n1:4000", 2.0, ("read", "write"), 5, b'{"lag":1}')
    catalog.heartbeat(node, 60_000)
    catalog.heartbeat(node, 60_000)
    assert engine.open().nodes() == [node]
    catalog.leave("n1")
    catalog.leave("n1")
    assert catalog.nodes() == []


def test_a_producer_that_was_silent_for_a_week_gives_its_place(engine: Engine) -> None:
    catalog = engine.open()
    catalog.create("t", 7, b"{}")

    def write(name: str, number: int) -> PartResult:
        part = Part(f"{name}-{number}-{next(_databases)}", 1, 5, Producer(name, number, number))
        ((result,),) = catalog.commit(f"blob-{next(_databases)}", "frames-v1", [Slice("t", 7, 0, (part,))])
        return result

    assert [write(name, 5).status for name in ("a", "b", "c")] == ["committed"] * PRODUCERS_MAX
    assert write("d", 1).status == "producers_full"
    engine.clock.advance(PRODUCER_KEPT_MS // 2)
    assert write("b", 6).first_seq == 4
    engine.clock.advance(PRODUCER_KEPT_MS // 2 + 1)
    assert write("d", 1).first_seq == 5
    assert write("b", 6) == PartResult("repeated", 4, 4)
    assert write("b", 5) == PartResult("repeated")
    assert write("b", 8) == PartResult("sequence_gap", next_number=7)
    # The one that was silent the longest is forgotten, and may begin anywhere.
    assert write("a", 50).status == "committed"
    assert write("c", 6).status == "producers_full"


def test_a_heartbeat_scans_neither_the_append_ids_nor_the_marks_that_are_kept(
    postgresql: PostgresServer, tmp_path: Path
) -> None:
    url = postgresql.new_database(f"shared_{next(_databases)}")
    catalog = open_shared_catalog(url, str(tmp_path), POLICY, ManualClock().now_ms)
    catalog.create("t", 7, b"{}")
    for blob in range(10):
        parts = tuple(Part(f"{blob}-{number}", 1, 10) for number in range(1000))
        catalog.commit(f"blob-{blob}", "frames-v1", [Slice("t", 7, 50, parts)])
        assert len(catalog.condemn([f"orphan-{blob}-{number}" for number in range(500)])) == 500
    catalog.close()
    catalog = open_shared_catalog(url, str(tmp_path), POLICY, ManualClock().now_ms)
    before = scanned_rows(url)
    for _ in range(5):
        catalog.heartbeat(BrokerNode("n", "http://n:1", 1.0, (), 0), 1000)
    # What a connection has scanned is counted when it ends.
    catalog.close()
    assert scanned_rows(url) == before


def scanned_rows(url: str) -> int:
    """Return the rows that were read by scans of whole tables."""
    with psycopg.connect(url) as db:
        row = db.execute(
            "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables"
            " WHERE relname IN ('topicsd_shared_parts', 'topicsd_shared_condemned')"
        ).fetchone()
    assert row is not None
    return int(row[0])
