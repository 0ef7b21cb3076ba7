from shared.runtime.clock import Clock, SystemClock

YEAR_2020_MS = 1_577_836_800_000


def test_the_system_clock_returns_ms_since_1970_and_monotonic_seconds() -> None:
    clock: Clock = SystemClock()
    assert isinstance(clock.now_ms(), int)
    assert clock.now_ms() > YEAR_2020_MS
    first = clock.monotonic()
    assert clock.monotonic() >= first
