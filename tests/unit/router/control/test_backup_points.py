from __future__ import annotations

import asyncio

import pytest

from router.control import backup_points
from router.control.backup_points import BackupPoints
from shared.contract.backup_point import ShardPoint, encode_hold
from shared.contract.errors import Refusal
from shared.ipc.link import NEVER_SENT
from shared.ipc.link_kind import LinkKind
from shared.runtime.clock import SystemClock


class Shards:
    """Two shards that answer as workers, in the order of `events`."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.holds: dict[int, list[bytes]] = {
            shard: [encode_hold(ShardPoint(shard, 1, 100 + shard, 7))] for shard in (0, 1)
        }
        self.releases: dict[int, bytes] = {0: encode_hold(""), 1: encode_hold("")}
        self.is_serving = True
        self.points = BackupPoints(self.ask, range(2), lambda shard: self.is_serving, SystemClock())

    async def ask(self, shard: int, kind: LinkKind, payload: bytes, seconds: float) -> bytes | None:
        assert (payload, seconds > 0) == (b"", True)
        self.events.append((kind.name, shard))
        await asyncio.sleep(0.001 * shard)
        if kind == LinkKind.RELEASE:
            return self.releases[shard]
        answers = self.holds[shard]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def take(self) -> dict[str, object] | Refusal:
        return asyncio.run(self.points.take())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_points, "PAUSE_SECONDS", 0.001)


def test_all_shards_hold_before_any_is_released() -> None:
    """B1."""
    shards = Shards()
    point = shards.take()
    assert isinstance(point, dict)
    assert point["shards"] == [
        {"shard": 0, "file": 1, "offset": 100, "ordinal": 7},
        {"shard": 1, "file": 1, "offset": 101, "ordinal": 7},
    ]
    assert [kind for kind, _ in shards.events] == ["HOLD", "HOLD", "RELEASE", "RELEASE"]
    assert shards.points.count == 1
    assert shards.points.last_pause_ms == point["pause_ms"] > 0


@pytest.mark.parametrize("answer", [None, NEVER_SENT, encode_hold("its log waits for a file")])
def test_a_shard_that_does_not_hold_releases_all_of_them(answer: bytes) -> None:
    """B3."""
    shards = Shards()
    shards.holds[1] = [answer]
    refusal = shards.take()
    assert isinstance(refusal, Refusal)
    assert refusal.code == "not_ready"
    assert refusal.message.startswith("no backup point was taken: shard 1: ")
    kinds = [kind for kind, _ in shards.events]
    assert kinds == ["HOLD", "HOLD", "RELEASE", "RELEASE"] * backup_points.ATTEMPTS


def test_an_attempt_is_repeated_when_a_log_waits_for_a_file() -> None:
    shards = Shards()
    shards.holds[0].insert(0, encode_hold("its log waits for a file"))
    assert isinstance(shards.take(), dict)
    assert len(shards.events) == 8


@pytest.mark.parametrize("answer", [encode_hold("the hold ended after 1 s"), None])
def test_a_hold_that_ended_early_or_is_not_synced_is_no_point(answer: bytes) -> None:
    """B1, B2."""
    shards = Shards()
    shards.releases[0] = answer
    refusal = shards.take()
    assert isinstance(refusal, Refusal)
    assert "shard 0" in refusal.message


def test_a_shard_that_does_not_serve_is_named_and_no_shard_is_held() -> None:
    shards = Shards()
    shards.is_serving = False
    refusal = shards.take()
    assert isinstance(refusal, Refusal)
    assert refusal.message == "no backup point was taken: shard 0 does not serve"
    assert shards.events == []


def test_a_second_point_at_the_same_time_is_throttled() -> None:
    shards = Shards()

    async def take_two() -> list[dict[str, object] | Refusal]:
        return list(await asyncio.gather(shards.points.take(), shards.points.take()))

    first, second = asyncio.run(take_two())
    assert isinstance(first, dict)
    assert isinstance(second, Refusal)
    assert second.code == "throttled"
