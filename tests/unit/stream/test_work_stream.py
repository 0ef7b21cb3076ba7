"""Streams of jobs: they claim ready jobs at once, by the priority of their queue, without polling."""

from __future__ import annotations

from errno import ENOSPC

import pytest

from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.feed_shards import Event, FakeStream
from topicsd.engine.queue.claim import drain_claims
from topicsd.engine.requests import ClaimRequest
from topicsd.stream.event_stream import LAGGING_SECONDS, PAUSED_SECONDS_MAX
from topicsd.stream.work_stream import HEARTBEAT_MS, WorkStreams

MINUTE = 60_000


class CountedStreams:
    def __init__(self, **config: object) -> None:
        self.one = OneShard()
        self.count = 0
        self.left = 0
        self.streams = WorkStreams(self.one.shard.state, self.one.loop, self._counted)
        self.queue("q", **config)

    def _counted(self, change: int) -> None:
        self.count += change

    def _leave(self) -> None:
        self.left += 1

    def queue(self, name: str, **config: object) -> None:
        self.one.put(name, type="queue", **config)

    def open(self, count: int = 1, lease_ms: int = MINUTE, name: str = "q", key_id: str = "") -> FakeStream:
        stream = FakeStream()
        request = ClaimRequest("w", count, lease_ms)
        self.streams.open(self.one.topic(name), request, stream, self._leave, key_id)
        self.one.settle()
        return stream


def seqs(events: list[Event]) -> list[int]:
    return [int(one.id) for one in events if one.name == "job"]


def test_a_job_is_delivered_at_the_moment_its_lease_expires() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1)
    counted.one.claim("q", "gone", lease_ms=5000)
    stream = counted.open()
    counted.one.pass_time(4999)
    assert seqs(stream.take()) == []
    counted.one.pass_time(1)
    (event,) = stream.take()
    assert (event.data["$seq"], event.data["deliveries"]) == (1, 2)


def test_a_lease_granted_while_the_stream_waits_is_watched_too() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1, 2)
    counted.one.claim("q", "slow", lease_ms=MINUTE)
    counted.one.claim("q", "slower", lease_ms=2 * MINUTE)
    stream = counted.open(count=5)
    counted.one.append("q", 3)
    counted.one.settle()
    assert seqs(stream.take()) == [3]
    counted.one.nack("q", "slower", 2, ms=1000)
    counted.one.pass_time(1000)
    assert seqs(stream.take()) == [2]
    counted.one.pass_time(MINUTE)
    assert 1 in seqs(stream.take())


def test_a_job_that_became_ready_in_another_request_is_delivered_to_a_waiting_stream() -> None:
    counted = CountedStreams()
    stream = counted.open()
    counted.one.append("q", 1, delay_ms=1000)
    counted.one.clock.step_wall(1000)
    assert counted.one.state("q").queue.ready == 1  # type: ignore[union-attr]
    counted.one.pass_time(1000)
    assert seqs(stream.take()) == [1]


def test_leases_are_extended_while_the_connection_lives() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1, 2)
    stream = counted.open(count=2, lease_ms=1000)
    other = counted.open(lease_ms=1000)
    counted.one.append("q", 3)
    counted.one.settle()
    for _ in range(40):
        counted.one.pass_time(250)
    assert (seqs(stream.take()), seqs(other.take())) == ([1, 2], [3])
    assert counted.one.state("q").queue.in_flight == 3  # type: ignore[union-attr]
    stream.on_lost()
    counted.one.settle()
    assert [event.data["deliveries"] for event in other.take()] == []
    assert counted.one.state("q").queue.ready == 2  # type: ignore[union-attr]


def test_leases_are_extended_while_a_paused_stream_lives() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1)
    stream = counted.open(lease_ms=1000)
    stream.is_paused = True
    counted.one.append("q", 2)
    counted.one.pass_time(PAUSED_SECONDS_MAX * 1000 - 1)
    assert counted.one.state("q").queue.in_flight == 1  # type: ignore[union-attr]
    counted.one.pass_time(1)
    assert (stream.is_closed, counted.one.state("q").queue.ready) == (True, 2)  # type: ignore[union-attr]


def test_a_lease_that_its_worker_extended_is_not_shortened() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1)
    counted.open(lease_ms=1000)
    counted.one.extend("q", "w", 1, ms=MINUTE)
    deadline = counted.one.topic("q").queue.known_jobs[1].deadline  # type: ignore[union-attr]
    counted.one.pass_time(5000)
    assert counted.one.topic("q").queue.known_jobs[1].deadline == deadline  # type: ignore[union-attr]


def test_any_number_of_durable_leases_costs_two_frames_per_lease_time() -> None:
    counted = CountedStreams(leases_durable=True)
    counted.one.append("q", *range(50))
    stream = counted.open(count=50, lease_ms=1000)
    frames = counted.one.shard.state.log.frame_count
    counted.one.pass_time(10_000)
    assert len(seqs(stream.take())) == 50
    assert 18 <= counted.one.shard.state.log.frame_count - frames <= 22


def test_a_refused_extension_is_retried_before_the_lease_expires() -> None:
    counted = CountedStreams(leases_durable=True)
    counted.one.append("q", 1)
    stream = counted.open(lease_ms=20_000)
    counted.one.pass_time(9_999)
    fault = counted.one.disk.fail("pwrite", error=ENOSPC)
    counted.one.pass_time(1)
    assert fault.fired == 1
    counted.one.pass_time(MINUTE)
    assert seqs(stream.take()) == [1]


def test_a_clock_set_back_delays_a_job_by_that_time_only() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1)
    counted.one.claim("q", "gone", lease_ms=1000)
    stream = counted.open()
    counted.one.clock.step_wall(-5000)
    counted.one.pass_time(5999)
    assert not stream.take()
    counted.one.pass_time(1)
    assert seqs(stream.take()) == [1]


def test_streams_are_counted_and_return_their_jobs_at_their_end() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1, 2)
    first, second = counted.open(), counted.open()
    assert (counted.count, seqs(first.take()), seqs(second.take())) == (2, [1], [2])
    first.on_lost()
    counted.one.settle()
    assert (counted.count, counted.left) == (1, 1)
    counted.one.ack("q", "w", 2)
    counted.one.settle()
    assert seqs(second.take()) == [1]
    counted.streams.drain()
    assert [one.name for one in second.take()] == ["error"]
    assert (counted.count, counted.left, counted.one.shard.state.queue_timers.timers) == (0, 2, {})


def test_a_client_that_does_not_read_lags_and_then_its_stream_ends() -> None:
    counted = CountedStreams()
    stream = counted.open()
    stream.is_paused = True
    counted.one.append("q", 1)
    counted.one.pass_time(LAGGING_SECONDS * 1000)
    assert (counted.streams.lagging_count, counted.one.state("q").queue.ready) == (1, 1)  # type: ignore[union-attr]
    stream.unpause()
    counted.one.settle()
    assert (counted.streams.lagging_count, seqs(stream.take())) == (0, [1])
    stream.is_paused = True
    counted.one.ack("q", "w", 1)
    counted.one.pass_time(PAUSED_SECONDS_MAX * 1000)
    assert [one.data["code"] for one in stream.take()] == ["slow_consumer"]
    assert (stream.is_closed, counted.count) == (True, 0)


def test_an_idle_stream_gets_a_heartbeat() -> None:
    counted = CountedStreams()
    stream = counted.open()
    stream.written = b""
    counted.one.pass_time(HEARTBEAT_MS)
    assert stream.written.startswith(b": hb ")


def test_streams_of_the_queue_with_the_higher_priority_claim_first() -> None:
    counted = CountedStreams(priority=-10)
    counted.queue("important", priority=900)
    low, high = counted.open(), counted.open(name="important")
    order: list[str] = []
    low.on_write = lambda: order.append("low")
    high.on_write = lambda: order.append("high")
    counted.one.send_append("q", 1)
    counted.one.send_append("important", 1)
    counted.one.settle()
    assert order == ["high", "low"]


@pytest.mark.parametrize("priority", [-10, 10])
def test_a_stream_opened_in_a_pause_waits_like_a_reader(priority: int) -> None:
    counted = CountedStreams(priority=priority)
    counted.one.append("q", 1)
    counted.one.shard.state.wake_queue.apply_pressure(0.0, is_paused=True)
    stream = counted.open()
    assert seqs(stream.take()) == ([] if priority < 0 else [1])
    counted.one.shard.state.wake_queue.apply_pressure(0.0, is_paused=False)
    counted.one.settle()
    assert seqs(stream.take()) == ([1] if priority < 0 else [])


def test_claims_collected_by_jitter_also_wait_for_their_turn() -> None:
    counted = CountedStreams(priority=-10, claim_jitter_ms=100)
    counted.one.append("q", 1)
    claim = counted.one.send_claim("q", "w")
    counted.one.shard.state.wake_queue.apply_pressure(0.0, is_paused=True)
    counted.one.pass_time(100)
    assert not claim.has_answer
    counted.one.shard.state.wake_queue.apply_pressure(0.0, is_paused=False)
    counted.one.settle()
    assert [one.seq for one in claim.answer.claimed] == [1]


def test_claims_collected_by_jitter_end_their_wait_at_a_drain() -> None:
    counted = CountedStreams(claim_jitter_ms=5000)
    counted.one.append("q", 1, 2)
    first = counted.one.send_claim("q", "v")
    drain_claims(counted.one.shard.state)
    second = counted.one.send_claim("q", "w")
    counted.one.settle()
    assert [one.seq for claim in (first, second) for one in claim.answer.claimed] == [1, 2]
    counted.one.pass_time(5000)


def test_a_revoked_key_ends_its_streams_and_returns_their_jobs() -> None:
    counted = CountedStreams()
    counted.one.append("q", 1, 2)
    first, second = counted.open(key_id="old"), counted.open(key_id="kept")
    assert (seqs(first.take()), seqs(second.take())) == ([1], [2])
    counted.streams.end_revoked(lambda key_id, name: (key_id, name) == ("kept", "q"))
    counted.one.settle()
    assert [one.data["code"] for one in first.take()] == ["unauthorized"]
    assert (first.is_closed, second.is_closed) == (True, False)
    assert counted.one.state("q").queue.ready == 1  # type: ignore[union-attr]
