from __future__ import annotations

from random import Random

from topicsd.engine.records.tail_run import TRIM_RECORDS, TailRun


def run_of(count: int, *, first_seq: int = 1, dead: tuple[int, ...] = ()) -> TailRun:
    """Records of 10 bytes more each, one a millisecond."""
    run = TailRun(first_seq)
    position = 0
    for number in range(count):
        run.extend(position, [10 * (number + 1)], 1000 + number)
        position += 10 * (number + 1)
    run.mark_all_dead(dead, 1)
    return run


def test_the_records_of_one_request_stand_one_behind_the_other() -> None:
    run = TailRun(5)
    run.extend(100, [10, 20, 30], 7)
    run.extend(500, [40], 8)
    assert run.next_seq == 9
    assert list(run.frame_positions) == [100, 110, 130, 500]
    assert list(run.lengths) == [10, 20, 30, 40]
    assert list(run.times_ms) == [7, 7, 7, 8]


def test_a_record_costs_twenty_bytes() -> None:
    run = TailRun(1)
    assert sum(column.itemsize for column in (run.frame_positions, run.lengths, run.times_ms)) == 20


def test_only_a_run_in_memory_keeps_frames() -> None:
    assert TailRun(1).frames is None
    assert TailRun(1, in_memory=True).frames == []


def test_nothing_is_dead_before_something_was_marked() -> None:
    run = run_of(3)
    assert run.dead is None
    assert [run.is_dead(seq) for seq in (1, 2, 3)] == [False] * 3
    assert [run.next_live(seq) for seq in (1, 2, 3, 4, 99)] == [1, 2, 3, 4, 99]
    assert run.last_live(1, 3) == 3


def test_dead_records_are_stepped_over_in_both_directions() -> None:
    run = run_of(6, first_seq=11, dead=(12, 13, 16))
    assert [seq for seq in range(11, 17) if run.is_dead(seq)] == [12, 13, 16]
    assert [run.next_live(seq) for seq in range(11, 18)] == [11, 14, 14, 14, 15, 17, 17]
    assert [run.last_live(11, seq) for seq in range(11, 17)] == [11, 11, 11, 14, 15, 15]
    assert run.last_live(12, 13) is None


def test_marking_a_record_returns_its_bytes_only_once() -> None:
    run = run_of(3)
    assert run.mark_all_dead([3, 2, 4, 0], 1) == ([3, 2], 50)
    assert run.mark_all_dead([2, 1], 1) == ([1], 10)


def test_what_comes_after_a_mark_is_alive() -> None:
    run = run_of(2, dead=(1,))
    run.extend(1000, [5, 6], 2000)
    assert [run.is_dead(seq) for seq in (1, 2, 3, 4)] == [True, False, False, False]


def test_totals_count_what_is_alive() -> None:
    run = run_of(5, dead=(2, 5))
    assert run.live_totals(1, 5) == (3, 10 + 30 + 40)
    assert run.live_totals(2, 2) == (0, 0)
    assert run.live_totals(3, 4) == (2, 70)
    assert run_of(5).live_totals(2, 3) == (2, 50)


def test_the_first_record_that_is_not_older_than_a_time_is_found() -> None:
    run = TailRun(1)
    for stamp in (100, 100, 200, 200, 300):
        run.extend(0, [1], stamp)
    assert [run.seq_at_or_after(ts) for ts in (99, 100, 101, 200, 300, 301)] == [1, 1, 3, 3, 5, 6]


def test_the_front_is_dropped_in_large_parts_only() -> None:
    run = run_of(3 * TRIM_RECORDS)
    run.forget_before(TRIM_RECORDS)
    run.forget_before(TRIM_RECORDS + 1)
    assert run.first_seq == 1, "it is not half of all yet"
    cut = TRIM_RECORDS * 3 // 2 + 1
    run.forget_before(cut)
    assert (run.first_seq, run.next_seq) == (cut, 3 * TRIM_RECORDS + 1)
    assert run.lengths[0] == 10 * cut
    assert run.times_ms[0] == 1000 + cut - 1


def test_marks_and_frames_move_with_the_front() -> None:
    run = TailRun(1, in_memory=True)
    count = 2 * TRIM_RECORDS
    run.extend(0, [7] * count, 1)
    assert run.frames is not None
    run.frames += [str(seq).encode() for seq in range(1, count + 1)]
    dead = TRIM_RECORDS + 10
    run.mark_all_dead([dead], 1)
    run.forget_before(TRIM_RECORDS + 1)
    assert run.frames[0] == str(TRIM_RECORDS + 1).encode()
    assert run.is_dead(dead)
    assert not run.is_dead(dead + 1)
    assert run.next_live(dead) == dead + 1
    assert len(run.frames) == len(run.lengths) == TRIM_RECORDS


def test_all_of_a_run_may_be_forgotten() -> None:
    run = run_of(TRIM_RECORDS)
    run.forget_before(TRIM_RECORDS + 1)
    assert run.first_seq == run.next_seq == TRIM_RECORDS + 1
    run.extend(5, [10], 9)
    assert run.next_live(TRIM_RECORDS + 1) == TRIM_RECORDS + 1


def test_it_agrees_with_a_plain_set_over_random_marks() -> None:
    rng = Random(9)
    for _ in range(30):
        first = rng.randint(1, 1000)
        run = run_of(rng.randint(1, 80), first_seq=first)
        alive = set(range(first, run.next_seq))
        for _ in range(60):
            if alive and rng.random() < 0.6:
                seq = rng.choice(sorted(alive))
                run.mark_all_dead([seq], 1)
                alive.remove(seq)
            low, high = sorted(rng.choices(range(first, run.next_seq), k=2))
            inside = [seq for seq in alive if low <= seq <= high]
            assert run.last_live(low, high) == max(inside, default=None)
            assert run.next_live(low) == min((seq for seq in alive if seq >= low), default=run.next_seq)
            assert run.live_totals(low, high) == (
                len(inside),
                sum(10 * (seq - first + 1) for seq in inside),
            )
