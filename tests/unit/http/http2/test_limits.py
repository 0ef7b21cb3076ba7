"""The limits of an HTTP/2 connection, and the admission of bodies."""

from __future__ import annotations

from topicsd.http.http2.limits import Allowance, BodyRoom


def test_an_allowance_permits_a_burst_and_a_rate() -> None:
    allowance = Allowance(3, 2, now=10.0)
    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]
    allowance = Allowance(3, 2, now=10.0)
    for _ in range(3):
        allowance.take(10.0)
    assert [allowance.take(11.0) for _ in range(3)] == [True, True, False]


def test_an_unused_allowance_does_not_accumulate_and_earned_units_are_added() -> None:
    allowance = Allowance(3, 2, now=0.0)
    assert [allowance.take(100.0) for _ in range(4)] == [True, True, True, False]
    allowance.give(3)
    assert [allowance.take(100.0) for _ in range(3)] == [True, True, False]


def test_bodies_are_admitted_in_order_when_each_fits_completely() -> None:
    room = BodyRoom(100)
    for stream_id, size in ((1, 60), (3, 30), (5, 100), (7, 5)):
        room.request(stream_id, size)
    assert room.admit() == [(1, 60), (3, 30)]
    assert room.admit() == []
    room.release(1)
    assert room.admit() == []
    room.release(3)
    assert room.admit() == [(5, 100)]
    room.release(5)
    assert room.admit() == [(7, 5)]


def test_a_stream_that_leaves_the_queue_does_not_delay_the_others() -> None:
    room = BodyRoom(100)
    for stream_id in (1, 3, 5):
        room.request(stream_id, 80)
    assert room.admit() == [(1, 80)]
    room.release(3)
    assert room.admit() == []
    room.release(1)
    assert room.admit() == [(5, 80)]
    room.release(5)
    room.release(99)
    assert room.admit() == []
