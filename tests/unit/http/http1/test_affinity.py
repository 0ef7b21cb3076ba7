"""When a connection has come to belong elsewhere."""

from __future__ import annotations

from topicsd.http.http1.affinity import FOREIGN_MIN, LOOKED_AT, Drift

HERE, THERE, ELSEWHERE = 0, 1, 2


def _after(*owners: int | None) -> Drift:
    drift = Drift(HERE, now=0.0)
    for owner in owners:
        drift.note(owner)
    return drift


def test_it_is_due_when_sixty_of_the_last_sixty_four_were_for_one_other_shard() -> None:
    others = LOOKED_AT - FOREIGN_MIN
    assert not _after(*[THERE] * (FOREIGN_MIN - 1)).is_due
    drift = _after(*[HERE] * others, *[THERE] * FOREIGN_MIN)
    assert (drift.is_due, drift.target) == (True, THERE)
    assert not _after(*[HERE] * (others + 1), *[THERE] * (FOREIGN_MIN - 1)).is_due


def test_the_last_ones_count() -> None:
    drift = _after(*[THERE] * LOOKED_AT)
    for owner in (HERE, None, ELSEWHERE, HERE):
        drift.note(owner)
        assert drift.target == THERE
    drift.note(HERE)
    assert (drift.is_due, drift.target) == (False, None)


def test_two_other_shards_are_no_reason_and_neither_is_the_front_process() -> None:
    assert not _after(*[THERE, ELSEWHERE] * LOOKED_AT).is_due
    assert not _after(*[None] * LOOKED_AT).is_due
    assert not _after(*[HERE] * LOOKED_AT).is_due


def test_it_moves_at_most_once_a_second() -> None:
    drift = _after(*[THERE] * LOOKED_AT)
    told = [now for now in (0.0, 0.5, 0.99, 1.0, 1.5, 1.99, 2.0, 2.1) if drift.may_move(now)]
    assert told == [1.0, 2.0]
