"""The exporter: extents in the catalog and objects in the store follow what a topic holds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.faulty_catalog import FaultyCatalog
from tests.harness.machine.fake_store import FakeStore
from tests.harness.shard.one_shard import OneShard
from topicsd.catalog.catalog import Extent
from topicsd.engine.bundle.bundle_format import Bundle, decode_bundle
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import ProducerSeq
from topicsd.engine.write.producers import producers_of
from topicsd.segment.entry import DATA, HOT, STATE

NODE = "node-a"
SOON_MS = 400_000


class ExportingShard:
    def __init__(self, **settings: Any) -> None:
        self.oracle = CatalogOracle()
        self.catalog = FaultyCatalog(self.oracle)  # type: ignore[arg-type]
        self.store = FakeStore()
        given = {"segment_max_events": 10, "checkpoint_interval_ms": 1000, "reader_grace_ms": 0, **settings}
        self.one = OneShard(node=self.catalog.node(NODE), store=self.store, **given)

    def settle(self, ms: float = SOON_MS) -> None:
        self.one.pass_time(ms)

    def extents(self, name: str = "t") -> list[Extent]:
        return self.oracle.extents(name)

    def state(self, name: str = "t") -> Bundle:
        """Return what the newest state object says."""
        (key,) = [one.key for one in self.extents(name)[-1].objects if one.key.endswith(STATE)]
        return decode_bundle(self.store.objects[key].data)

    def check(self, name: str = "t") -> None:
        """Check that every object that the catalog or the state names exists, and that no other one does."""
        named = {one.key: one for extent in self.extents(name) for one in extent.objects}
        for key, one in named.items():
            assert len(self.store.objects[key].data) == one.size, key
        for entry in self.state(name).topic.segments:
            assert entry.object_stem + DATA in named
        assert self.store.objects.keys() == named.keys()


def test_sealed_segments_are_exported_in_order_with_the_state_of_the_topic() -> None:
    shard = ExportingShard()
    for number in range(35):
        shard.one.append("t", number)
    shard.settle(10_000)
    assert [(one.first_seq, one.last_seq) for one in shard.extents()] == [(1, 10), (11, 20), (21, 30)]
    shard.check()
    state = shard.state().topic
    assert (state.name, state.head, [one.first_seq for one in state.segments]) == ("t", 30, [1, 11, 21])


def test_an_active_segment_is_exported_after_the_interval() -> None:
    shard = ExportingShard(export_interval_ms=60_000)
    shard.one.append("t", 1, 2, 3)
    shard.settle(30_000)
    assert not shard.extents()
    shard.settle(60_000)
    assert [(one.first_seq, one.last_seq) for one in shard.extents()] == [(1, 3)]
    shard.check()


def test_records_are_exported_after_the_interval_when_no_checkpoint_is_due() -> None:
    shard = ExportingShard(export_interval_ms=10_000, checkpoint_interval_ms=86_400_000)
    shard.one.append("t", 1, 2, 3)
    shard.settle(20_000)
    assert [(one.first_seq, one.last_seq) for one in shard.extents()] == [(1, 3)]
    shard.check()
    shard.one.append("t", 4)
    shard.settle(20_000)
    assert [(one.first_seq, one.last_seq) for one in shard.extents()] == [(1, 3), (4, 4)]
    # The state before it is deleted once a snapshot does not name it.
    assert shard.one.checkpoint() is None
    shard.settle(120_000)
    shard.check()


def test_an_idle_shard_makes_no_request() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(10))
    shard.settle()
    calls, requests = shard.catalog.calls.total(), len(shard.store.requests)
    shard.settle(3_600_000)
    assert (shard.catalog.calls.total(), len(shard.store.requests)) == (calls, requests)


def test_entries_name_their_objects_after_a_restart() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(10))
    shard.settle()
    shard.one.kill()
    (run, *_) = shard.one.topic("t").runs
    assert isinstance(run, SealedRun)
    assert run.entry.object_stem + DATA in shard.store.objects


def test_an_extent_that_was_published_before_a_crash_is_found_again() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(10))
    shard.one.checkpoint()
    disk = shard.one.disk.after_process_kill()
    shard.settle()
    before = dict(shard.store.objects)
    shard.one.open(disk)
    shard.settle()
    (run, *_) = shard.one.topic("t").runs
    assert isinstance(run, SealedRun)
    assert run.entry.object_stem
    assert {key for key in before if not key.endswith(STATE)} <= shard.store.objects.keys()
    shard.check()


@pytest.mark.parametrize("away", ["catalog", "store"])
def test_exports_catch_up_after_the_catalog_or_the_store_was_away(away: str) -> None:
    shard = ExportingShard(hot_retain_segments=100)
    shard.one.append("t", 1)
    shard.settle()
    if away == "catalog":
        shard.catalog.is_away = True
    else:
        shard.store.faults = ["lost request"] * 10_000
    for number in range(40):
        shard.one.append("t", number)
    shard.settle()
    assert len(shard.extents()) <= 1
    assert len(shard.one.seqs("t")) == 41
    shard.catalog.is_away = False
    shard.store.faults = []
    shard.settle()
    assert shard.extents()[-1].last_seq == 41
    shard.check()


def test_a_segment_without_live_records_leaves_the_catalog_and_the_store() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(40))
    shard.settle()
    shard.one.delete("t", before_seq=21)
    shard.settle()
    assert shard.extents()[0].first_seq == 21
    shard.check()


def test_a_dead_segment_in_the_middle_keeps_its_range_without_objects() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(40))
    shard.settle()
    shard.one.delete("t", seqs=list(range(11, 21)))
    shard.settle()
    assert [(one.first_seq, one.last_seq, bool(one.objects)) for one in shard.extents()] == [
        (1, 10, True),
        (11, 20, False),
        (21, 30, True),
        (31, 40, True),
    ]
    shard.check()


def test_a_compacted_segment_is_exported_again() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(40))
    shard.settle()
    shard.one.delete("t", seqs=[*range(11, 19)])
    shard.settle()
    shard.settle()
    generations = [one.generation for one in shard.extents()]
    assert generations == [0, 1, 0, 0]
    shard.check()


def test_the_objects_of_a_deleted_topic_are_deleted() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(40))
    shard.settle()
    shard.one.delete_topic("t")
    shard.settle()
    assert shard.oracle.row("t") is None
    assert not shard.store.objects


HOUR_MS = 3_600_000


def test_a_state_that_changes_without_records_is_exported_at_the_interval() -> None:
    shard = ExportingShard(export_interval_ms=60_000)
    shard.one.put("t", type="queue")
    shard.one.append("t", *range(10))
    shard.settle()
    for change in range(3):
        before = shard.state()
        if change == 0:
            shard.one.ack("t", "w", *shard.one.claimed("t", "w", 2, 600_000))
        elif change == 1:
            shard.one.put("t", max_deliveries=7)
        else:
            shard.one.delete("t", seqs=[9])
        shard.settle(200_000)
        after = shard.state()
        assert after != before
        shard.check()
    assert after.topic.config.max_deliveries == 7
    assert after.topic.segments[0].dead_count == 3
    calls, requests = shard.catalog.calls.total(), exports(shard)
    shard.settle(HOUR_MS)
    assert (shard.catalog.calls.total(), exports(shard)) == (calls, requests)
    shard.one.restart()
    shard.settle(HOUR_MS)
    changes = shard.catalog.calls.total() - calls - shard.catalog.calls["list"]
    assert changes <= 2, "a restart looks the topics up, and exports no state again"
    assert exports(shard) == requests


def exports(shard: ExportingShard) -> int:
    """Return the number of objects that were put so far, without those that probe the store."""
    return sum(one.startswith("create segments") for one in shard.store.requests)


def test_only_the_newest_extent_has_a_state_object() -> None:
    shard = ExportingShard()
    for number in range(60):
        shard.one.append("t", number)
        if number % 20 == 19:
            shard.settle()
    states = [[one.key for one in each.objects if one.key.endswith(STATE)] for each in shard.extents()]
    assert [len(each) for each in states] == [0] * 5 + [1]
    shard.check()


def test_a_state_forgets_what_it_knows_of_records_after_its_end() -> None:
    shard = ExportingShard(export_interval_ms=0)
    for number in range(5):
        shard.one.append("t", number, producer=ProducerSeq("early", number + 1))
        shard.one.append("t", number, idempotency_key=f"k{number}")
    shard.one.append("t", 1, producer=ProducerSeq("late", 1))
    shard.one.append("t", 1, idempotency_key="late")
    shard.settle(20_000)
    state = shard.state()
    assert state.topic.head == 10
    assert set(producers_of(state.topic.sections)._known) == {"early"}  # type: ignore[union-attr]
    assert sum(len(one.counts) // 4 for one in state.keys) == 5


def test_objects_are_not_put_again_when_the_catalog_does_not_answer() -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(10))
    shard.catalog.before_call = lambda verb: setattr(shard.catalog, "is_away", verb == "publish_extents")
    shard.settle()
    data = [key for key in shard.store.objects if key.endswith(DATA)]
    assert len(data) == 1
    shard.catalog.before_call, shard.catalog.is_away = None, False
    shard.settle()
    assert [key for key in shard.store.objects if key.endswith(DATA)] == data
    shard.check()


@pytest.mark.parametrize("is_done", [False, True])
def test_objects_of_a_segment_that_vanished_during_its_export_are_deleted(is_done: bool) -> None:
    shard = ExportingShard()
    shard.one.append("t", *range(20))
    shard.settle()

    def fail(verb: str) -> None:
        shard.catalog.is_away = verb == "publish_extents" and not is_done
        shard.catalog.lost_answers = int(verb == "publish_extents" and is_done)

    shard.catalog.before_call = fail
    shard.one.append("t", *range(20))
    shard.settle(60_000)
    shard.one.delete("t", seqs=list(range(21, 31)))
    shard.settle(60_000)
    shard.catalog.before_call, shard.catalog.is_away, shard.catalog.lost_answers = None, False, 0
    shard.one.append("t", *range(10))
    shard.settle()
    shard.settle()
    assert shard.extents()[-1].last_seq == 50
    shard.check()


def test_a_topic_whose_change_is_refused_does_not_hold_up_the_others() -> None:
    shard = ExportingShard()
    shard.one.append("a", *range(10))
    shard.settle()
    # An extent that no node of ours has published.
    oracle = shard.oracle.topics["a"]
    oracle.exported_to = 1000
    oracle.extent_of = {1000: Extent(1000, 1000, (), 0, 0, 1)}
    oracle.ceiling = 10_000_000
    shard.one.append("a", *range(20))
    shard.one.append("b", *range(20))
    shard.settle()
    assert shard.extents("b")[-1].last_seq == 20


def test_a_damaged_segment_does_not_hold_up_other_topics() -> None:
    shard = ExportingShard()
    shard.one.append("a", *range(10))
    shard.one.append("b", *range(10))
    shard.catalog.is_away = True
    shard.one.checkpoint()
    (run, *_) = shard.one.topic("a").runs
    assert isinstance(run, SealedRun)
    shard.one.disk.flip(
        f"{shard.one.shard._directory.paths.root}/{run.name.key(DATA)}", run.entry.data_bytes - 3
    )
    shard.catalog.is_away = False
    shard.settle()
    assert shard.extents("b")[-1].last_seq == 10
    assert not shard.extents("a")


def test_a_local_copy_stays_while_its_object_is_missing() -> None:
    shard = ExportingShard(hot_retain_segments=1)
    for number in range(25):
        shard.one.append("t", number)
    shard.settle(20_000)
    missing = next(
        key for key in shard.store.objects if "-seg-0000000000000001-" in key and key.endswith(DATA)
    )
    del shard.store.objects[missing]
    shard.settle(200_000)
    tiers = [run.entry.tier for run in shard.one.topic("t").runs if isinstance(run, SealedRun)]
    assert tiers[0] == HOT
    shard.one.restart()
    assert shard.one.seqs("t") == list(range(1, 26))
