"""The outcomes of ended jobs are bounded, and a dropped outcome is never reported wrongly."""

from __future__ import annotations

from topicsd.engine.queue.job import ENDED_MAX, DeletedSeqs, Outcomes


def test_the_oldest_are_forgotten_and_nothing_is_said_of_those_in_front_of_them() -> None:
    endings = Outcomes()
    for seq in range(1, 3 * ENDED_MAX, 2):
        if seq % 3:
            endings.note_dead([seq])
        else:
            endings.note_deleted(DeletedSeqs(seq))
    assert len(endings.dead) + len(endings.deleted) <= ENDED_MAX
    last = 3 * ENDED_MAX - 1
    assert (endings.of(last - 1), endings.of(last)) == ("acked", "dead")
    assert (endings.of(last - 2), endings.of(1), endings.of(2)) == ("deleted", "gone", "gone")
    assert endings.of(endings.known_from - 1) == "gone"


def test_of_very_many_that_are_deleted_at_once_none_is_kept() -> None:
    endings = Outcomes(dead=[7, 10**6])
    endings.note_deleted(DeletedSeqs(*range(100, 101 + ENDED_MAX)))
    assert (endings.of(7), endings.of(100), endings.of(10**6)) == ("gone", "gone", "dead")
    assert not endings.deleted
