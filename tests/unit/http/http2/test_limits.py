"""What a connection of HTTP/2 may cost, and whose body is let in."""

from __future__ import annotations

from topicsd.http.http2.limits import Allowance, BodyRoom


def test_an_allowance_is_so_much_at_once_and_so_much_a_second() -> None:
    allowance = Allowance(3, 2, now=10.0)
    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]
    allowance = Allowance(3, 2, now=10.0)
    for _ in range(3):
        allowance.take(10.0)
    assert [allowance.take(11.0) for _ in range(3)] == [True, True, False]


def test_what_is_not_used_is_not_saved_up_and_what_is_earned_is_added() -> None:
    allowance = Allowance(3, 2, now=0.0)
    assert [allowance.take(100.0) for _ in range(4)] == [True, True, True, False]
    allowance.give(3)
    assert [allowance.take(100.0) for _ in range(3)] == [True, True, False]


def test_bodies_are_let_in_in_their_order_when_there_is_room_for_all_of_them() -> None:
    room = BodyRoom(100)
    for stream_id, size in ((1, 60), (3, 30), (5, 100), (7, 5)):
        room.ask(stream_id, size)
    assert room.admitted() == [(1, 60), (3, 30)]
    assert room.admitted() == []
    room.leave(1)
    assert room.admitted() == []
    room.leave(3)
    assert room.admitted() == [(5, 100)]
    room.leave(5)
    assert room.admitted() == [(7, 5)]


def test_who_gives_up_waiting_holds_up_nobody() -> None:
    room = BodyRoom(100)
    for stream_id in (1, 3, 5):
        room.ask(stream_id, 80)
    assert room.admitted() == [(1, 80)]
    room.leave(3)
    assert room.admitted() == []
    room.leave(1)
    assert room.admitted() == [(5, 80)]
    room.leave(5)
    room.leave(99)
    assert room.admitted() == []
