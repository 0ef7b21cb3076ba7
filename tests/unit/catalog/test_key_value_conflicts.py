"""What commits of several brokers to one topic of a key-value store cost each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

from shared.runtime.retries import Retries
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.machine.manual_clock import ManualClock
from topicsd.catalog.engines.key_value import VersionedKey
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.key_topics import CONFLICT_PAUSES
from topicsd.catalog.shared.seed_documents import TopicKeys
from topicsd.catalog.shared.shared_catalog import Part, PartResult, Producer, Slice

CONTROL = TopicKeys("t").control


class NotedKeys(FakeKeyValue):
    """Notes the requests of one process, and lets others act before a write of the control document."""

    def __init__(self, keys: SharedKeys) -> None:
        super().__init__(keys, Random(0))
        self.notes: list[str] = []
        self.rivals: list[KeyValueSharedCatalog] = []
        """Each commits once, before one write."""
        self.after_blob: Callable[[], object] = lambda: None
        """Called after each read of the state of a blob."""

    def get(self, key: str, partition: str | None = None) -> VersionedKey | None:
        self.notes.append(f"get {key}")
        entry = super().get(key, partition)
        if key.startswith("topicsd/blobs/"):
            self.after_blob()
        return entry

    def put_if(
        self,
        key: str,
        value: bytes,
        version: int | None,
        partition: str | None = None,
        lease_ms: int | None = None,
    ) -> bool:
        if key == CONTROL and self.rivals:
            number = len(self.rivals)
            assert commit(self.rivals.pop(), f"rival-{number}").status == "committed"
        self.notes.append(f"put {key}")
        return super().put_if(key, value, version, partition, lease_ms)


class Process:
    def __init__(self, keys: SharedKeys, threads: int = 1) -> None:
        clock = ManualClock()
        self.waits: list[float] = []
        self.store = NotedKeys(keys)
        retries = Retries(clock.monotonic, self.waits.append, 10.0, lambda: 1.0)
        self.catalog = KeyValueSharedCatalog(self.store, retries, clock.now_ms, threads=threads)


def commit(catalog: KeyValueSharedCatalog, blob: str) -> PartResult:
    ((result,),) = catalog.commit(blob, "frames-v1", [Slice("t", 7, 50, (Part(f"id-{blob}", 1, 10),))])
    return result


def test_a_commit_writes_nothing_between_the_read_of_a_topic_and_its_compare_and_set() -> None:
    process = Process(SharedKeys())
    process.catalog.create("t", 7, b"{}")
    process.store.notes.clear()
    assert commit(process.catalog, "blob") == PartResult("committed", 1, 1)
    notes = process.store.notes
    written = notes.index(f"put {CONTROL}")
    read = max(number for number in range(written) if notes[number] == f"get {CONTROL}")
    assert [note for note in notes[read:written] if note.startswith("put")] == []
    assert any(note.startswith("get topicsd/blobs/") for note in notes[read:written])


def test_a_commit_that_another_process_has_finished_is_answered_without_a_wait() -> None:
    keys = SharedKeys()
    process, rival = Process(keys), Process(keys)
    process.catalog.create("t", 7, b"{}")
    controls = 0
    put_if = process.store.put_if

    def put_after_rival(*write: object) -> bool:
        nonlocal controls
        controls += write[0] == CONTROL
        if write[0] == CONTROL and controls == 2:
            # It finishes the pending commit of the other one, then commits.
            assert commit(rival.catalog, "rival") == PartResult("committed", 2, 2)
        return put_if(*write)  # type: ignore[arg-type]

    process.store.put_if = put_after_rival  # type: ignore[method-assign, assignment]
    assert commit(process.catalog, "blob") == PartResult("committed", 1, 1)
    assert controls == 2
    assert process.waits == rival.waits == []
    assert [one.key for one in rival.catalog.extents_from("t", 1, 9)] == ["blob", "rival"]


def test_a_commit_whose_numbers_another_process_has_committed_first_is_repeated() -> None:
    keys = SharedKeys()
    process, rival = Process(keys), Process(keys)
    process.catalog.create("t", 7, b"{}")
    put_if = process.store.put_if

    def commit_numbers(catalog: KeyValueSharedCatalog, blob: str, count: int) -> list[list[PartResult]]:
        part = Part(f"id-{blob}", count, 10, Producer("p", 1, 1))
        return catalog.commit(blob, "frames-v1", [Slice("t", 7, 50, (part,))])

    def put_after_rival(*write: object) -> bool:
        if write[0] == CONTROL:
            process.store.put_if = put_if  # type: ignore[method-assign]
            assert commit_numbers(rival.catalog, "rival", 2) == [[PartResult("committed", 1, 2)]]
        return put_if(*write)  # type: ignore[arg-type]

    for count in (4, 2):
        # Also when it would have the same seqs: its records are not those that are kept.
        process.store.put_if = put_after_rival  # type: ignore[method-assign, assignment]
        results = commit_numbers(process.catalog, f"blob-{count}", count)
        assert results == [[PartResult("repeated", 1, 2)]]
        process.catalog.forget("t", 7)
        process.catalog.create("t", 7, b"{}")


def test_a_committed_part_is_not_fenced_while_its_topic_is_deleted() -> None:
    keys = SharedKeys()
    process, rival = Process(keys), Process(keys)
    rival.catalog.create("t", 7, b"{}")
    assert commit(rival.catalog, "blob").status == "committed"
    rival.catalog.fence("t", 7, "FENCED")
    read = process.store.range

    def range_after_forget(*page: Any) -> list[VersionedKey]:
        process.store.range = read  # type: ignore[method-assign]
        rival.catalog.forget("t", 7)
        return read(*page)

    process.store.range = range_after_forget  # type: ignore[method-assign]
    assert commit(process.catalog, "blob").status == "missing"


def test_a_part_is_compared_with_all_that_is_known_at_one_moment() -> None:
    keys = SharedKeys()
    process, rival = Process(keys), Process(keys)
    rival.catalog.create("t", 7, b"{}")
    assert commit(rival.catalog, "blob").status == "committed"
    read = process.store.range

    def commit_numbers(catalog: KeyValueSharedCatalog, digest: str) -> list[list[PartResult]]:
        part = Part("id", 1, 10, Producer("p", 1, 1), digest)
        return catalog.commit(f"blob-{digest}", "frames-v1", [Slice("t", 7, 50, (part,))])

    def commit_after_range(*page: Any) -> list[VersionedKey]:
        process.store.range = read  # type: ignore[method-assign]
        entries = read(*page)
        assert commit_numbers(rival.catalog, "one") == [[PartResult("committed", 2, 2)]]
        return entries

    process.store.range = commit_after_range  # type: ignore[method-assign]
    # The append id has another digest; that it is of a repeated number comes after that.
    assert commit_numbers(process.catalog, "another") == [[PartResult("mismatch")]]


def test_pauses_after_conflicts_stay_short() -> None:
    keys = SharedKeys()
    process = Process(keys)
    process.catalog.create("t", 7, b"{}")
    process.store.rivals = [Process(keys).catalog for _ in range(12)]
    result = commit(process.catalog, "blob")
    assert result == PartResult("committed", 13, 13)
    assert len(process.waits) == 12
    assert max(process.waits) <= CONFLICT_PAUSES.seconds_max


def test_the_topics_of_one_blob_do_not_conflict_with_each_other() -> None:
    keys = SharedKeys()
    process = Process(keys, threads=8)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        process.catalog.create(name, 7, b"{}")
    # The topics are committed by a thread each, which all know the state of the blob before one continues.
    meeting = threading.Barrier(len(names), timeout=20.0)
    met: set[str] = set()

    def meet() -> None:
        name = threading.current_thread().name
        if name.startswith("ThreadPoolExecutor") and name not in met:
            met.add(name)
            meeting.wait()

    process.store.after_blob = meet
    slices = [Slice(name, 7, 50, (Part(f"id-{name}", 1, 10),)) for name in names]
    results = process.catalog.commit("blob", "frames-v1", slices)
    assert results == [[PartResult("committed", 1, 1)]] * len(names)
    assert len(met) == len(names)
    registrations = [note for note in process.store.notes if note.startswith("put topicsd/blobs/")]
    assert len(registrations) == 1
    assert process.waits == []
    process.catalog.close()
