"""When a connection belongs to another shard."""

from __future__ import annotations

from topicsd.http.http1.affinity import FOREIGN_MIN, WINDOW_REQUESTS, ShardAffinity

HERE, OTHER, THIRD = 0, 1, 2


def _after(*owners: int | None) -> ShardAffinity:
    affinity = ShardAffinity(HERE, now=0.0)
    for owner in owners:
        affinity.count(owner)
    return affinity


def test_a_move_is_due_when_sixty_of_the_last_sixty_four_requests_were_for_one_other_shard() -> None:
    others = WINDOW_REQUESTS - FOREIGN_MIN
    assert not _after(*[OTHER] * (FOREIGN_MIN - 1)).is_due
    affinity = _after(*[HERE] * others, *[OTHER] * FOREIGN_MIN)
    assert (affinity.is_due, affinity.target) == (True, OTHER)
    assert not _after(*[HERE] * (others + 1), *[OTHER] * (FOREIGN_MIN - 1)).is_due


def test_only_the_last_requests_count() -> None:
    affinity = _after(*[OTHER] * WINDOW_REQUESTS)
    for owner in (HERE, None, THIRD, HERE):
        affinity.count(owner)
        assert affinity.target == OTHER
    affinity.count(HERE)
    assert (affinity.is_due, affinity.target) == (False, None)


def test_requests_for_two_shards_or_for_the_supervisor_do_not_count() -> None:
    assert not _after(*[OTHER, THIRD] * WINDOW_REQUESTS).is_due
    assert not _after(*[None] * WINDOW_REQUESTS).is_due
    assert not _after(*[HERE] * WINDOW_REQUESTS).is_due


def test_a_connection_moves_at_most_once_a_second() -> None:
    affinity = _after(*[OTHER] * WINDOW_REQUESTS)
    moves = [now for now in (0.0, 0.5, 0.99, 1.0, 1.5, 1.99, 2.0, 2.1) if affinity.may_move(now)]
    assert moves == [1.0, 2.0]
