"""The state that a worker publishes on the board, with a fake disk and a manual clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shared.ipc.board import Board, Slot
from shared.runtime.histogram import BUCKETS
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.unit.engine.wakeups.test_pressure import be_late
from topicsd.engine.queue.waiting_claims import claim_with_wait
from topicsd.engine.requests import ClaimRequest
from topicsd.service.request_counts import RequestCounts
from topicsd.worker.board_publisher import BEAT_SECONDS, BoardPublisher


@pytest.fixture
def slot() -> Iterator[Slot]:
    board = Board.create(1)
    yield board.slot(0)
    board.close()
    os.close(board.fd)


def publish(slot: Slot, one: OneShard, requests: RequestCounts | None = None) -> Slot:
    BoardPublisher(slot, one.clock).publish(one.shard, requests or RequestCounts(one.clock))
    return slot


def test_live_topics_and_records_are_published(slot: Slot) -> None:
    one = OneShard()
    one.append("a", 1, 2, 3, idempotency_key="k")
    one.append("b", 4)
    one.delete("a", before_seq=2)
    publish(slot, one)
    assert (slot.topics, slot.records_live) == (2, 3)
    assert slot.bytes_live == one.state("a").bytes + one.state("b").bytes > 0
    assert slot.idempotency_keys == 1


def test_topics_by_class_are_correct_after_changes_deletes_and_restarts(slot: Slot) -> None:
    one = OneShard()
    for number, durability in enumerate(("ephemeral", "memory", "disk", "fsync", "fsync", "fsync")):
        one.put(f"t{number}", durability=durability)
    one.put("t1", durability="disk")
    one.put("t4", durability="memory")
    one.delete_topic("t5")
    expected = (1, 1, 2, 1)
    for restarts in range(3):
        publish(slot, one)
        counts = (slot.topics_ephemeral, slot.topics_memory, slot.topics_disk, slot.topics_fsync)
        assert counts == expected
        assert sum(counts) == slot.topics
        if restarts:
            one.restart()
        else:
            one.kill()


def test_evicted_records_are_counted_and_deleted_ones_are_not(slot: Slot) -> None:
    one = OneShard()
    one.put("a", cap_records=3)
    one.append("a", *range(10))
    one.append("a", 10)
    one.delete("a", before_seq=10)
    assert publish(slot, one).evicted_total == 8
    one.restart()
    publisher = BoardPublisher(slot, one.clock)
    publisher.begin(one.shard)
    publisher.publish(one.shard, RequestCounts(one.clock))
    assert slot.evicted_total == 0
    one.append("a", *range(5))
    publisher.publish(one.shard, RequestCounts(one.clock))
    # Two of the records before, and two of the five new ones.
    assert slot.evicted_total == 4


def test_records_that_broke_a_schema_are_counted(slot: Slot) -> None:
    one = OneShard()
    one.put("a", schema={"type": "null"})
    one.refused_append("a", None, 1, 2)
    one.put("a", schema_mode="warn")
    one.append("a", None, 1, 2)
    publish(slot, one)
    assert (slot.schema_refused_total, slot.schema_accepted_total) == (1, 2)


def test_leases_in_flight_are_published(slot: Slot) -> None:
    one = OneShard()
    for name in ("a", "b"):
        one.put(name, type="queue", leases_durable=True)
        one.append(name, 1, 2, 3)
        one.claim(name, "w", 3)
    one.put("c")
    one.ack("a", "w", 1)
    one.nack("b", "w", 2)
    assert (publish(slot, one).queue_topics, slot.leases_in_flight) == (2, 4)
    one.checkpoint()
    one.kill()
    assert (publish(slot, one).queue_topics, slot.leases_in_flight) == (2, 4)
    one.delete_topic("b")
    assert (publish(slot, one).queue_topics, slot.leases_in_flight) == (1, 2)
    one.pass_time(30_000)
    assert one.state("a").queue is not None
    assert publish(slot, one).leases_in_flight == 0


def test_claims_that_wait_are_published(slot: Slot) -> None:
    one = OneShard()
    ends = []
    for name, claims in (("a", 2), ("b", 1), ("c", 0)):
        one.put(name, type="queue")
        for node in range(claims):
            request = ClaimRequest(f"w{node}", 1, 60_000, 1000)
            ends.append(claim_with_wait(one.shard.state, name, request, RecordedReply()))
    one.settle()
    assert publish(slot, one).waiting_claims == 3
    one.append("a", 1)
    one.settle()
    assert publish(slot, one).waiting_claims == 2
    for end in ends:
        end()
    assert publish(slot, one).waiting_claims == 0


def test_uploads_are_published(slot: Slot) -> None:
    one = OneShard()
    requests = RequestCounts(one.clock)
    requests.uploads, requests.upload_lines, requests.upload_records = 1, 3, 2
    publish(slot, one, requests)
    assert (slot.uploads_total, slot.upload_lines_total, slot.upload_records_total) == (1, 3, 2)


def test_log_counters_are_published(slot: Slot) -> None:
    one = OneShard(wal_file_bytes=64 << 10)
    one.put("a", durability="fsync")
    for _ in range(100):
        one.append("a", "x" * 1000)
    publish(slot, one)
    counters = one.shard.log.counters
    assert (slot.frames_total, slot.batches_total) == (counters.frames, counters.batches)
    assert slot.rotations_total == slot.log_files - 1 >= 1
    assert sum(slot.sync_us[: BUCKETS + 1]) == slot.syncs_total >= 100
    frames = slot.batch_frames
    assert sum(frames[: BUCKETS + 1]) == slot.batches_total
    assert frames[-1] == slot.frames_total
    # A record and the end of its batch: up to two.
    assert frames[1] >= 90
    assert slot.is_rejecting_writes == 0


def test_waiting_writes_are_published(slot: Slot) -> None:
    one = OneShard(max_waiting_requests=2)
    one.put("a", durability="fsync")
    for _ in range(4):
        one.send_append("a", 1)
        one.loop.run_until_idle()
    publish(slot, one)
    assert slot.waiting_writes == slot.waiting_writes_max == 2
    assert slot.throttled_total == 2
    assert slot.unsynced_bytes > 0
    one.settle()
    publish(slot, one)
    assert (slot.waiting_writes, slot.waiting_writes_max) == (0, 2)


def test_requests_are_published_by_kind(slot: Slot) -> None:
    requests = RequestCounts(ManualClock())
    for histogram, values in (
        (requests.appends, (10, 20, 30)),
        (requests.reads, (40,)),
        (requests.waited_reads, (5000,)),
        (requests.waited_claims, (9000,)),
        (requests.others, (7,)),
    ):
        for value in values:
            histogram.counts[value.bit_length()] += 1
            histogram.total += value
    requests.records_beyond_first = 9
    publish(slot, OneShard(), requests)
    assert (slot.appends_total, slot.records_total, slot.reads_total) == (3, 12, 2)
    assert slot.append_us[4:6] == [1, 2]
    assert slot.append_us[-1] == 60
    assert slot.waited_claim_us[14] == slot.waited_read_us[13] == slot.read_us[6] == slot.other_us[3] == 1


def test_pressure_is_published_with_its_parts(slot: Slot) -> None:
    one = OneShard(max_waiting_requests=2)
    one.put("a", durability="fsync", priority=-1)
    one.shard.pressure.start()
    publish(slot, one)
    assert (slot.pressure_millionths, slot.ready_count, slot.held_count) == (0, 0, 0)
    be_late(one)
    one.shard.state.wake_queue.wake(one.topic("a"))
    one.pass_time(25)
    one.send_append("a", 1)
    one.loop.run_until_idle()
    assert one.send_append("a", 2).code == "throttled"
    publish(slot, one)
    assert 950_000 <= slot.pressure_millionths <= 1_000_000
    assert slot.pressure_delay_millionths == slot.pressure_millionths
    assert (slot.pressure_depth_millionths, slot.pressure_busy_millionths) == (0, 0)
    assert (slot.refused_under_pressure_total, slot.throttled_total) == (1, 0)
    assert (slot.ready_count, slot.held_count) == (0, 1)
    one.shard.pressure.stop()
    one.settle()
    publish(slot, one)
    assert sum(slot.scheduler_us[:-1]) == one.shard.state.wake_queue.latency_us.count == 1


def test_a_heartbeat_reports_how_late_the_loop_is(slot: Slot) -> None:
    clock = ManualClock()
    publisher = BoardPublisher(slot, clock)
    publisher.beat_on_timer()
    clock.advance(BEAT_SECONDS * 1000 + 30)
    publisher.beat_on_timer()
    assert 29_000 <= slot.loop_late_us == slot.loop_late_us_max <= 31_000
    clock.advance(BEAT_SECONDS * 1000)
    publisher.beat_on_timer()
    assert slot.loop_late_us < 1000
    assert slot.loop_late_us_max >= 29_000
    assert slot.beat_ms == int(clock.monotonic() * 1000)
