"""Each way for a run to end leaves the right head: exact where it is known, else the ceiling."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import ReadAnswer

Ending = Callable[[OneShard], None]


def _reboot_after_stop(one: OneShard) -> None:
    one.close()
    one.open(one.disk.after_reboot())


def _power_cut_after_stop(one: OneShard) -> None:
    one.close()
    one.cut_power(1)


def _copy_after_stop(one: OneShard) -> None:
    one.close()
    one.open(one.disk.copied())


def _copy_of_the_running(one: OneShard) -> None:
    one.open(one.disk.copied())


def _failed_sync(one: OneShard) -> None:
    one.disk.fail("sync_data", seed=2)
    assert one.refused_append("f", "in doubt").code == "storage_failed"
    one.kill()


KNOWN: list[Ending] = [
    OneShard.restart,
    _reboot_after_stop,
    _power_cut_after_stop,
    _copy_after_stop,
    OneShard.kill,
]
UNKNOWN: list[Ending] = [OneShard.cut_power, OneShard.reboot, _copy_of_the_running, _failed_sync]


def _busy() -> OneShard:
    """Topics of each class with ten acked records, of which the last five are only written."""
    one = OneShard()
    for name, durability in (("f", "fsync"), ("d", "disk"), ("m", "memory"), ("e", "ephemeral")):
        one.put(name, durability=durability)
        one.append(name, *range(5))
    one.pass_time(60)
    for name in ("d", "m", "e"):
        one.append(name, *range(5))
    return one


def _idle() -> OneShard:
    """The same, and nothing has happened for some seconds."""
    one = _busy()
    one.pass_time(4000)
    return one


def _read_all(one: OneShard, name: str) -> list[ReadAnswer]:
    """All answers to a reader who begins at the start."""
    answers = [one.read(name)]
    while not answers[-1].caught_up:
        answers.append(one.read(name, answers[-1].next_from_seq))
    return answers


@pytest.mark.parametrize("end", KNOWN)
def test_a_head_that_can_be_known_is_exact_and_no_loss_is_reported(end: Ending) -> None:
    one = _busy()
    end(one)
    for name, head in (("f", 5), ("d", 10), ("m", 10)):
        (answer,) = _read_all(one, name)
        assert answer.tombstone is None
        assert answer.head_seq == head
        assert len(answer.records) == head
        assert one.append(name, "next").first_seq == head + 1


@pytest.mark.parametrize("end", UNKNOWN)
def test_a_head_that_cannot_be_known_resumes_at_the_ceiling_and_reports_the_loss(end: Ending) -> None:
    one = _busy()
    end(one)
    for name in ("d", "m"):
        answers = _read_all(one, name)
        seqs = [record.seq for answer in answers for record in answer.records]
        (gap,) = [answer.tombstone for answer in answers if answer.tombstone is not None]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) in (5, 10)
        assert (gap.gap_from, gap.reason) == (len(seqs) + 1, "crash")
        assert gap.gap_to == answers[-1].head_seq >= 10
        assert one.append(name, "next").first_seq == gap.gap_to + 1
        (after,) = _read_all(one, name)[-1:]
        assert [record.seq for record in after.records][-1] == gap.gap_to + 1
    assert [answer.tombstone for answer in _read_all(one, "f")] == [None]
    assert one.append("f", "next").first_seq in (6, 7)


@pytest.mark.parametrize("end", UNKNOWN[:3])
def test_a_topic_that_was_idle_and_synced_reports_no_loss_whatever_ends_the_run(end: Ending) -> None:
    one = _idle()
    end(one)
    for name, head in (("f", 5), ("d", 10), ("m", 10)):
        (answer,) = _read_all(one, name)
        assert answer.tombstone is None
        assert answer.head_seq == len(answer.records) == head


def test_an_idle_topic_beside_a_busy_one_reports_no_loss() -> None:
    one = _idle()
    for number in range(10):
        one.append("m", number)
        one.pass_time(30)
    one.cut_power(3)
    assert [answer.tombstone for answer in _read_all(one, "d")] == [None]
    assert one.state("d").head_seq == 10


@pytest.mark.parametrize("end", [*KNOWN, *UNKNOWN])
def test_the_past_of_an_ephemeral_topic_is_reported_as_evicted_and_its_seqs_are_not_used_again(
    end: Ending,
) -> None:
    one = _busy()
    end(one)
    (answer,) = _read_all(one, "e")
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.reason) == (1, "crash")
    assert answer.tombstone.gap_to == answer.head_seq >= 10
    assert answer.records == []
    state = one.state("e")
    assert state.evict_floor == state.earliest_seq == answer.head_seq + 1
    assert one.append("e", 1).first_seq == answer.head_seq + 1


def test_a_loss_that_was_reported_once_is_reported_by_every_later_start() -> None:
    one = _busy()
    one.cut_power(5)
    gaps = []
    for end in (OneShard.kill, OneShard.restart, OneShard.cut_power, OneShard.reboot):
        gaps.append(next(answer.tombstone for answer in _read_all(one, "d") if answer.tombstone is not None))
        end(one)
    assert len({(gap.gap_from, gap.gap_to, gap.reason) for gap in gaps}) == 1


def test_a_second_crash_loses_what_came_after_the_first_and_reports_both() -> None:
    one = _busy()
    one.cut_power(5)
    first_head = one.state("d").head_seq
    one.append("d", *range(3))
    one.pass_time(60)
    one.append("d", "perhaps lost")
    one.cut_power(6)
    answers = _read_all(one, "d")
    gaps = [answer.tombstone for answer in answers if answer.tombstone is not None]
    assert len(gaps) == 2
    assert gaps[0].gap_to == first_head
    assert gaps[1].gap_from in (first_head + 4, first_head + 5)
    kept = [record.seq for answer in answers for record in answer.records]
    assert kept[-1] == gaps[1].gap_from - 1


def test_the_copy_of_a_running_directory_is_as_careful_on_the_machine_that_made_it() -> None:
    one = _busy()
    copy = OneShard(disk=one.disk.copied(), clock=one.clock)
    assert any(answer.tombstone is not None for answer in _read_all(copy, "d"))
    # And it does not become exact by being killed before it wrote anything.
    again = OneShard(disk=copy.disk.after_process_kill(), clock=one.clock)
    assert again.state("d").head_seq == copy.state("d").head_seq


def test_seeds_of_a_power_cut_differ_in_what_they_leave() -> None:
    one = _busy()
    left = {
        len(OneShard(disk=one.disk.after_power_cut(Random(seed)), clock=one.clock).seqs("d"))
        for seed in range(40)
    }
    assert left == {5, 10}
