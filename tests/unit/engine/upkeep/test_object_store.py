"""A shard and its object store: what is exported, read, deleted, and what happens while the store is away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from shared.contract.errors import Refusal
from tests.harness.machine.fake_store import FakeStore
from tests.harness.shard.one_shard import OneShard, record
from topicsd.disk.layout import make_dirs
from topicsd.engine.checkpoint.job import OBJECTS_TO_DELETE
from topicsd.engine.checkpoint.snapshot_files import choose_snapshot
from topicsd.engine.queue.explain import explain
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep import upkeep
from topicsd.engine.upkeep.scrub_pass import FIRST_SCRUB_SECONDS
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS
from topicsd.segment.entry import COLD, HOT
from topicsd.store.object_store import ObjectInfo, StoreUnavailable

pytestmark = pytest.mark.usefixtures("quiet_log")


class AwayStore(FakeStore):
    """A store that can be away."""

    is_away = False

    def _begin(self, request: str) -> None:
        if self.is_away:
            self.requests.append(request)
            raise StoreUnavailable("connection refused")
        super()._begin(request)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._begin(f"list {prefix}")
        return iter([*super().list(prefix, after)])


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock of these tests stands still while a thread waits.
    monkeypatch.setattr(upkeep, "STORE_RETRY_SECONDS", 0.0)


def sealed(one: OneShard) -> list[SealedRun]:
    return [run for run in one.topic("t").runs if isinstance(run, SealedRun)]


def filled(store: FakeStore, count: int = 65, **settings: object) -> OneShard:
    """Segments of ten records each."""
    given = {"hot_retain_segments": 2, "reader_grace_ms": 0, **settings}
    one = OneShard(store=store, segment_max_events=10, **given)
    one.settle()
    for number in range(count):
        one.append("t", record("x" * 100 + str(number), tag=f"tag-{number % 3}"))
    one.checkpoint()
    return one


def rounds(one: OneShard, count: int = 1) -> None:
    for _ in range(count):
        one.pass_time(ROUND_SECONDS * 1000 + 1)


def local(one: OneShard, suffix: str) -> int:
    topics = [path for path in one.disk.all_files() if path.startswith("/data/shards/00/topics/")]
    return sum(path.endswith(suffix) for path in topics)


def keys(store: FakeStore, suffix: str = ".data") -> list[str]:
    return sorted(key for key in store.objects if key.endswith(suffix))


def stems(runs: Sequence[SealedRun]) -> list[str]:
    return [f"{run.entry.object_stem}.data" for run in runs if run.entry.object_stem]


def test_old_segments_are_read_from_the_store_and_only_their_records_leave_the_directory() -> None:
    store = AwayStore()
    one = filled(store)
    before = one.read("t", limit=1000).records
    rounds(one)
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 4 + [HOT] * 2
    assert keys(store) == sorted(stems(sealed(one)))
    assert local(one, ".data") == 7, "the older snapshot needs them"
    one.checkpoint()
    one.checkpoint()
    assert (local(one, ".data"), local(one, ".idx")) == (3, 7)
    for end in ("kill", "restart"):
        getattr(one, end)()
        assert one.read("t", limit=1000).records == before
    assert not one.shard.state.damaged_segments


def test_an_idle_store_gets_no_request() -> None:
    store = AwayStore()
    one = filled(store)
    rounds(one, 3)
    store.requests.clear()
    rounds(one, 5)
    assert store.requests == []


def test_age_and_bytes_bound_what_stays_local() -> None:
    one = filled(AwayStore(), hot_retain_segments=100, hot_retain_ms=3_600_000)
    rounds(one)
    assert {run.entry.tier for run in sealed(one)} == {HOT}
    one.pass_time(3_700_000)
    rounds(one)
    assert {run.entry.tier for run in sealed(one)} == {COLD}


def test_a_store_that_is_away_delays_exports_and_nothing_else() -> None:
    store = AwayStore()
    store.is_away = True
    one = filled(store)
    rounds(one, 2)
    assert one.shard.state.store_problem == "connection refused"
    assert {run.entry.tier for run in sealed(one)} == {HOT}
    assert len(one.read("t", limit=1000).records) == 65
    one.append("t", 1)
    one.checkpoint()
    store.is_away = False
    rounds(one, 2)
    assert one.shard.state.store_problem == ""
    assert [run.entry.tier for run in sealed(one)][:4] == [COLD] * 4
    assert keys(store) == sorted(stems(sealed(one)))


def test_reads_of_a_store_that_is_away_are_refused_for_now_and_succeed_later() -> None:
    store = AwayStore()
    one = filled(store)
    rounds(one)
    one.checkpoint()
    one.checkpoint()
    one.kill()
    store.is_away = True
    refusal = one.refused_read("t")
    assert (refusal.code, refusal.retry_after_ms) == ("store_unavailable", 1000)
    assert one.seqs("t", 40)[0] == 41, "what is local is read"
    assert one.delete("t", before_seq=15).deleted == 14, "its index is local"
    assert one.delete("t", tag="tag-1").deleted > 10, "its tags are local"
    store.is_away = False
    assert one.seqs("t")[:3] == [15, 16, 18]
    assert not one.shard.state.damaged_segments


def test_a_start_makes_no_request_before_it_serves() -> None:
    store = AwayStore()
    one = filled(store)
    rounds(one)
    one.checkpoint()
    one.checkpoint()
    one.delete("t", tag="tag-0")
    store.is_away = True
    store.requests.clear()
    one.kill()
    assert all("probe/" in request for request in store.requests)
    assert one.state("t").count == 43


def test_objects_are_deleted_when_no_kept_snapshot_names_them() -> None:
    store = AwayStore()
    one = filled(store)
    rounds(one)
    one.checkpoint()
    one.delete("t", before_seq=21)
    one.checkpoint()
    rounds(one)
    one.append("t", 1)
    one.checkpoint()
    one.append("t", 1)
    one.checkpoint()
    rounds(one)
    assert keys(store) == sorted(stems(sealed(one)))
    assert len(store.objects) == 2 * 3, "their indexes and tags too"


@pytest.mark.parametrize("change", ["delete", "topic", "rewrite"])
def test_no_delete_is_lost_while_the_store_is_away(change: str) -> None:
    store = AwayStore()
    one = filled(store, hot_retain_segments=0)
    rounds(one)
    one.checkpoint()
    old = set(keys(store))
    assert len(old) == 6
    if change == "delete":
        one.delete("t", before_seq=61)
    elif change == "topic":
        one.delete_topic("t")
        one.append("t", 1)
    else:
        one.delete("t", tag="tag-0")
        one.delete("t", tag="tag-1")
        rounds(one, 2)
    store.is_away = True
    for _ in range(4):
        one.append("t", 1)
        one.checkpoint()
        rounds(one)
    assert set(keys(store)) >= old
    snapshot, _ = choose_snapshot(one.disk, one.paths)
    assert snapshot is not None
    assert OBJECTS_TO_DELETE in snapshot.head.sections
    one.kill()
    store.is_away = False
    rounds(one, 3)
    one.checkpoint()
    rounds(one, 2)
    assert not old & set(keys(store))
    assert set(keys(store)) == set(stems(sealed(one)))
    one.append("t", 1)
    one.checkpoint()
    snapshot, _ = choose_snapshot(one.disk, one.paths)
    assert snapshot is not None
    assert OBJECTS_TO_DELETE not in snapshot.head.sections


def test_dropped_objects_stay_for_the_grace_time() -> None:
    store = AwayStore()
    one = filled(store, reader_grace_ms=600_000)
    rounds(one)
    one.checkpoint()
    one.delete("t", before_seq=21)
    for _ in range(3):
        one.append("t", 1)
        one.checkpoint()
    rounds(one, 5)
    assert len(keys(store)) == 4
    rounds(one, 7)
    assert keys(store) == sorted(stems(sealed(one)))


def test_a_store_that_ignores_conditions_gets_no_segment() -> None:
    store = AwayStore()
    store.ignores_conditions = True
    one = filled(store)
    rounds(one, 2)
    assert "ignores the condition of a PUT" in one.shard.state.store_problem
    assert store.objects == {}


def test_a_damaged_local_copy_is_answered_from_the_store_and_dropped() -> None:
    store = AwayStore()
    one = filled(store)
    rounds(one)
    run = sealed(one)[0]
    path = f"/data/shards/00/{run.name.key('.data')}"
    one.kill()
    assert path in one.disk.all_files()
    one.disk.flip(path, run.index.offsets[3] + 50)
    assert one.seqs("t") == list(range(1, 66))
    assert one.shard.state.segments.is_distrusted(run.name)
    assert not one.shard.state.damaged_segments
    one.checkpoint()
    one.checkpoint()
    assert path not in one.disk.all_files()


def test_a_rewritten_segment_has_objects_of_its_own() -> None:
    store = AwayStore()
    one = filled(store, hot_retain_segments=0)
    rounds(one)
    old = stems(sealed(one))
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    before = one.seqs("t")
    rounds(one, 4)
    for _ in range(3):
        one.append("t", record(1, tag="tag-2"))
        one.checkpoint()
        rounds(one)
    assert {run.entry.generation for run in sealed(one)} == {1}
    assert not set(old) & set(keys(store))
    one.kill()
    assert one.seqs("t")[: len(before)] == before


def moved_by_an_earlier_version() -> OneShard:
    """Two segments below `shards/00` in the folder, whose entries have no stem."""
    one = OneShard(segment_max_events=10, hot_retain_segments=2, reader_grace_ms=0, cold_dir="/cold")
    for number in range(45):
        one.append("t", record("x" * 100 + str(number), tag=f"tag-{number % 3}"))
    one.checkpoint()
    for run in sealed(one)[:2]:
        run.entry = msgspec.structs.replace(run.entry, tier=COLD)
        for suffix in (".data", ".idx", ".tags"):
            path = run.name.key(suffix)
            make_dirs(one.disk, f"/cold/shards/00/{path}".rpartition("/")[0])
            one.disk.write_file(f"/cold/shards/00/{path}", one.disk.read_file(f"/data/shards/00/{path}"))
            one.disk.unlink(f"/data/shards/00/{path}")
    for _ in range(2):
        one.append("t", 1)
        one.checkpoint()
    one.restart()
    return one


def test_segments_that_an_earlier_version_moved_are_read_and_compacted() -> None:
    one = moved_by_an_earlier_version()
    assert [(run.entry.tier, run.entry.object_stem) for run in sealed(one)[:2]] == [(COLD, "")] * 2
    assert one.seqs("t") == list(range(1, 48))
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    kept = one.seqs("t")
    for _ in range(4):
        one.append("t", record(1, tag="tag-2"))
        one.checkpoint()
        rounds(one)
    assert all(run.entry.object_stem for run in sealed(one)[:2])
    assert not [path for path in one.disk.all_files() if path.startswith("/cold/shards/")]
    one.kill()
    assert one.seqs("t")[: len(kept)] == kept


def test_an_empty_mount_point_instead_of_them_is_no_damage() -> None:
    one = moved_by_an_earlier_version()
    for path in one.disk.all_files():
        if path.startswith("/cold/shards/"):
            one.disk.unlink(path)
    one.restart()
    one.pass_time(FIRST_SCRUB_SECONDS * 1000 + ROUND_SECONDS * 3000)
    assert "is it mounted?" in one.shard.state.store_problem
    assert not one.shard.state.damaged_segments


def exported_queue(store: FakeStore, hot_retain_segments: int = 0, **config: object) -> OneShard:
    """Jobs in segments that are in the store, and until the next checkpoints in the data directory too."""
    one = OneShard(
        store=store, segment_max_events=10, hot_retain_segments=hot_retain_segments, reader_grace_ms=0
    )
    one.settle()
    one.put("t", **{"type": "queue", "max_deliveries": 2, "lease_ms": 60_000, **config})
    for number in range(65):
        one.append("t", record("x" * 100 + str(number), tag=f"tag-{number}"))
    one.checkpoint()
    rounds(one)
    return one


def filled_queue(store: FakeStore, **config: object) -> OneShard:
    """Jobs 1 to 40 have their records in the store only, jobs 41 to 65 are local."""
    one = exported_queue(store, 2, **config)
    one.checkpoint()
    one.checkpoint()
    one.kill()
    return one


def refused_claim(one: OneShard, count: int = 1) -> Refusal:
    reply = one.send_claim("t", "w", count)
    one.settle()
    assert isinstance(reply.answer, Refusal)
    return reply.answer


@pytest.mark.parametrize("config", [{}, {"leases_durable": True}, {"order_by": "tag"}], ids=str)
def test_a_claim_that_the_store_did_not_answer_is_no_delivery(config: dict[str, object]) -> None:
    store = AwayStore()
    one = filled_queue(store, **config)
    store.is_away = True
    for first in (1, 11):
        refusal = refused_claim(one, 10)
        assert (refusal.code, refusal.retry_after_ms) == ("store_unavailable", 1000)
        for seq in range(first, first + 10):
            answer = explain(one.shard.state, "t", seq)
            assert isinstance(answer, dict)
            assert (answer["state"], answer["deliveries"]) == ("delayed", 0)
    for _ in range(3):
        one.pass_time(1001)
        assert refused_claim(one, 20).code == "store_unavailable"
    one.kill()
    one.pass_time(1001)
    store.is_away = False
    claimed = one.claim("t", "w", 20).claimed
    assert [(job.seq, job.deliveries) for job in claimed] == [(seq, 1) for seq in range(1, 21)]


def test_jobs_after_those_in_the_store_are_claimed_while_it_is_away() -> None:
    store = AwayStore()
    one = filled_queue(store)
    store.is_away = True
    answer = one.claim("t", "w", 45)
    assert [job.seq for job in answer.claimed] == list(answer.jobs) == list(range(41, 46))
    assert one.claimed("t", "w", 10) == list(range(46, 56))
    counts = one.state("t").queue
    assert counts is not None
    assert (counts.in_flight, counts.delayed, counts.ready) == (15, 40, 10)


def test_a_local_segment_after_one_that_the_store_did_not_deliver_is_still_trusted() -> None:
    store = AwayStore()
    one = exported_queue(store)
    first, second = sealed(one)[:2]
    one.kill()
    one.disk.unlink(f"/data/shards/00/{first.name.key('.data')}")
    store.is_away = True
    answer = one.claim("t", "w", 20)
    assert [job.seq for job in answer.claimed] == list(answer.jobs) == list(range(11, 21))
    assert not one.shard.state.segments.is_distrusted(second.name)


def test_a_claim_whose_read_outlasts_the_lease_gets_no_job_of_another_worker() -> None:
    one = filled_queue(AwayStore())
    slow = one.send_claim("t", "slow", 3)
    one.clock.advance(60_001)
    quick = one.send_claim("t", "quick", 2)
    one.settle()
    assert [job.seq for job in slow.answer.claimed] == list(slow.answer.jobs) == [3]
    assert [job.seq for job in quick.answer.claimed] == list(quick.answer.jobs) == [1, 2]


def test_a_returned_job_keeps_its_deliveries_and_reasons() -> None:
    store = AwayStore()
    one = filled_queue(store, leases_durable=True, max_deliveries=5)
    one.claimed("t", "w", 3)
    one.nack("t", "w", 1, reason="first")
    one.nack("t", "w", 2, reason="second")
    one.nack("t", "w", 3)
    one.kill()
    store.is_away = True
    refused_claim(one, 3)
    one.kill()
    store.is_away = False
    one.pass_time(1001)
    assert [(job.seq, job.deliveries) for job in one.claim("t", "w", 3).claimed] == [(1, 2), (2, 2), (3, 2)]
    queue = one.topic("t").queue
    assert queue is not None
    assert [queue.known_jobs[seq].reason for seq in (1, 2, 3)] == ["first", "second", ""]
