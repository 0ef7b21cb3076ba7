from __future__ import annotations

from itertools import pairwise

import pytest

from topicsd.engine.wakeups.governor import LoadSample, Pressure, Stages, next_pressure, stages

IDLE = LoadSample(0, 0.0005, 0.0)
FULL = LoadSample(1000, 0.02, 1.0)


def after(sample: LoadSample, looks: int, pressure: Pressure | None = None) -> Pressure:
    pressure = pressure or Pressure()
    for _ in range(looks):
        pressure = next_pressure(pressure, sample)
    return pressure


@pytest.mark.parametrize(
    "sample",
    [
        IDLE,
        # A single writer keeps the disk at work all the time.
        LoadSample(0, 0.001, 1.0),
        LoadSample(5, 0.001, 1.0),
        # A loop with some work in each turn.
        LoadSample(10, 0.0015, 0.3),
    ],
)
def test_a_server_with_little_to_do_puts_nothing_off(sample: LoadSample) -> None:
    assert stages(after(sample, 100)) == Stages()


def test_nothing_at_all_is_no_pressure() -> None:
    assert after(IDLE, 100) == Pressure()
    assert Pressure().level == 0.0


def test_each_part_is_a_share_of_what_is_too_much() -> None:
    pressure = after(LoadSample(128, 0.003, 0.25), 100)
    assert pressure[:3] == pytest.approx((0.5, 0.5, 0.25))
    assert after(FULL, 100)[:3] == pytest.approx((1.0, 1.0, 1.0))


def test_no_part_is_more_than_all_or_less_than_nothing() -> None:
    wild = after(LoadSample(10**9, 1e6, 50.0), 50)
    assert max(wild[:3]) <= 1.0
    assert wild.level <= 1.0
    backwards = after(LoadSample(0, -5.0, -1.0), 50)
    assert backwards.level == 0.0


def test_one_stumble_of_the_loop_widens_nothing() -> None:
    pressure = next_pressure(Pressure(), LoadSample(0, 3.0, 0.0))
    assert pressure.level == pytest.approx(0.25)
    stage_list = stages(pressure)
    assert stage_list.coalesce_seconds < 0.002
    assert stage_list == Stages(coalesce_seconds=stage_list.coalesce_seconds)
    assert stages(next_pressure(pressure, IDLE)) == Stages()


def test_the_stages_come_one_after_the_other_and_grow() -> None:
    stage_lists = [stages(Pressure(depth=percent / 100)) for percent in range(101)]
    assert [one.coalesce_seconds > 0 for one in stage_lists] == [percent > 20 for percent in range(101)]
    assert [one.sync_window_seconds > 0 for one in stage_lists] == [percent > 40 for percent in range(101)]
    assert [one.is_refusing for one in stage_lists] == [percent >= 95 for percent in range(101)]
    for before, behind in pairwise(stage_lists):
        assert behind.coalesce_seconds >= before.coalesce_seconds
        assert behind.sync_window_seconds >= before.sync_window_seconds
    assert stage_lists[41].sync_window_seconds == pytest.approx(0.0005, abs=0.0002)
    assert (stage_lists[100].coalesce_seconds, stage_lists[100].sync_window_seconds) == pytest.approx(
        (0.02, 0.01)
    )


def test_a_pause_begins_high_and_ends_low() -> None:
    pressure = Pressure()
    seen = []
    for share in (0.7, 0.85, 0.7, 0.61, 0.55, 0.7):
        pressure = after(LoadSample(round(share * 256), 0.0, 0.0), 40, pressure)
        seen.append(stages(pressure).is_paused)
    assert seen == [False, True, True, True, False, False]


def test_it_follows_within_a_second_and_lets_go_within_two() -> None:
    pressed = after(FULL, 10)
    assert stages(pressed).is_refusing
    assert stages(pressed).is_paused
    eased = after(IDLE, 20, pressed)
    assert stages(eased) == Stages()


def test_a_busy_disk_adds_to_what_the_others_say() -> None:
    alone = after(LoadSample(128, 0.0, 0.0), 100)
    beside = after(LoadSample(128, 0.0, 1.0), 100)
    assert alone.level < beside.level < alone.level + 0.1
