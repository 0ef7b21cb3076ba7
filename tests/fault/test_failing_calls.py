"""Every disk call of every script fails once, and for ever, in every way that a disk has.

The checks are in `tests/harness/sweeps/fault_sweep.py`, and those of the start after it in
`tests/harness/books/recovery_check.py`.
"""

from __future__ import annotations

import errno

import pytest

from tests.harness.machine.faults import READING_CALLS
from tests.harness.shard.shard_run import EVERY_MANNER, MANNERS, Manner
from tests.harness.sweeps.checkpoint_scripts import LONG, SCRIPTS
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.fault_sweep import Way, sweep_faults
from tests.harness.sweeps.start_sweep import Before, fail_each_start

# Calls that take room, and so may find none.
ROOM_CALLS = ("create", "allocate", "pwrite", "rename")

WAYS = [
    Way(None, errno.EIO),
    Way(None, errno.ENOSPC),
    Way(None, errno.EIO, forever=True),
    *(Way(call, errno.ENOSPC, forever=True) for call in ROOM_CALLS),
    *(Way("sync_data", errno.EIO, seed=seed) for seed in ((None, 1, 2, 3) if DEEP else (None, 1))),
    Way("sync_data", errno.ENOSPC, seed=1),
    Way("sync_data", errno.EIO, forever=True),
    Way(short_bytes=0),
    Way(short_bytes=200),
    Way(short_bytes=1, forever=True),
    *(Way(call, errno.EIO) for call in READING_CALLS),
]
START_WAYS = [
    Way(None, errno.EIO),
    Way(None, errno.ENOSPC),
    Way(None, errno.EIO, forever=True),
    Way("pwrite", errno.ENOSPC, forever=True),
    Way(short_bytes=1),
    *(Way(call, errno.EIO) for call in READING_CALLS),
]
# Of the ends of a script, those whose start is swept through.
START_STRIDE = 1 if DEEP else 30
# Of scripts with many calls: the ways to fail share them out among themselves.
LONG_STRIDE = 1 if DEEP else 16
LONG_START_STRIDE = 1 if DEEP else 300

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


def _named(way: Way) -> str:
    failure = errno.errorcode[way.error] if way.short_bytes is None else f"short {way.short_bytes}"
    seed = "" if way.seed is None else f" {way.seed}"
    return f"{way.call or 'any'} {failure}{seed}{' for ever' if way.forever else ''}"


@pytest.mark.parametrize("manner", EVERY_MANNER if DEEP else MANNERS[1:2])
@pytest.mark.parametrize("way", WAYS, ids=_named)
def test_every_request_is_answered_and_every_answer_holds_when_a_call_fails(way: Way, manner: Manner) -> None:
    for name in SCRIPTS:
        sweep_faults(name, manner, way, LONG_STRIDE if name in LONG else 1)


@pytest.mark.parametrize("way", WAYS[:2], ids=_named)
@pytest.mark.parametrize("manner", ["prompt/late", "by hand"])
def test_the_same_holds_when_syncs_come_at_other_times(way: Way, manner: Manner) -> None:
    for name in SCRIPTS:
        sweep_faults(name, manner, way, LONG_STRIDE if name in LONG else 1)


@pytest.mark.parametrize("before", ["power cut", "kill", "failed sync", "clean"])
@pytest.mark.parametrize("way", START_WAYS, ids=_named)
def test_a_start_in_which_a_call_fails_is_refused_or_right_and_the_next_one_is_right(
    way: Way, before: Before
) -> None:
    for name in SCRIPTS:
        calls = 0
        while fail_each_start(name, "late", before, calls, way):
            calls += LONG_START_STRIDE if name in LONG else START_STRIDE
