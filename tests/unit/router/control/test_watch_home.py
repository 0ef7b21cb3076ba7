"""The home of a watch session, and how many there may be."""

from __future__ import annotations

import pytest

from router.control.watch_home import WatchHome
from shared.contract.errors import NOT_READY, Refusal
from shared.ipc.exact_counts import WATCH_SESSIONS, ReservedCount
from shared.ipc.placement import Placement
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.server.whole_server import name_on
from tests.harness.stage.small_board import SmallBoard

SHARDS = 3


class Shards:
    def __init__(self) -> None:
        self.down: set[int] = set()

    def __len__(self) -> int:
        return SHARDS

    def refusal(self, shard: int) -> Refusal | None:
        return Refusal(NOT_READY, f"shard {shard} is gone") if shard in self.down else None


@pytest.fixture
def small() -> SmallBoard:
    return SmallBoard(SHARDS, ManualClock())


def names(*shards: int) -> list[str]:
    return [name_on(shard, SHARDS, f"{prefix}-") for prefix, shard in zip("abcdef", shards, strict=False)]


def home(small: SmallBoard, bound: int = 0, shards: Shards | None = None) -> WatchHome:
    return WatchHome(shards or Shards(), Placement(SHARDS), ReservedCount(small.board, bound, WATCH_SESSIONS))


@pytest.mark.parametrize(("shards", "expected"), [((1,), 1), ((0, 2, 2), 2), ((0, 1, 0, 1, 1), 1)])
def test_the_home_is_where_most_topics_are(small: SmallBoard, shards: tuple[int, ...], expected: int) -> None:
    assert home(small).reserve(names(*shards)) == expected


def test_among_equals_the_home_has_the_fewest_sessions(small: SmallBoard) -> None:
    for shard, count in enumerate((4, 2, 3)):
        small.board.slot(shard).watch_sessions = count
    one = home(small)
    one.sessions.read_board()
    assert [one.reserve(names(0, 1, 2)) for _ in range(6)] == [1, 1, 2, 0, 1, 2]
    assert one.reserve(names(0, 2)) == 0


def test_reservations_stop_at_the_cap(small: SmallBoard) -> None:
    small.board.slot(2).watch_sessions = 3
    one = home(small, bound=4)
    assert one.reserve(names(0)) == 0
    refused = one.reserve(names(1))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.detail) == ("throttled", {"limit": "max_watch_sessions", "max": 4})
    one.sessions.release(0)
    assert one.reserve(names(1)) == 1


def test_a_home_that_is_down_is_refused_and_not_counted(small: SmallBoard) -> None:
    shards = Shards()
    one = home(small, bound=1, shards=shards)
    shards.down = {1}
    refused = one.reserve(names(1))
    assert isinstance(refused, Refusal)
    assert refused.message == "shard 1 is gone"
    assert one.unreachable(1).message == "shard 1 is gone"
    assert one.unreachable(0).message == "shard 0 does not answer"
    assert one.reserve(names(0)) == 0


def test_an_unknown_count_is_refused(small: SmallBoard) -> None:
    small.end(2)
    refused = home(small, bound=4).reserve(names(0))
    assert isinstance(refused, Refusal)
    assert refused.code == NOT_READY
