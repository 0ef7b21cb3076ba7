"""The backup point over two shards, with a client that writes to one and then to the other in between."""

from __future__ import annotations

import asyncio

import pytest

from router.control.backup_points import BackupPoints
from shared.ipc.link_kind import LinkKind
from shared.runtime.clock import SystemClock
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.service.shards.backup_hold import BackupHold


class CausalClient:
    """A client that writes to a shard, and to the other one as soon as that is acknowledged."""

    def __init__(self, shards: list[OneShard], first: int) -> None:
        self._shards = shards
        self._order = [first, 1 - first]
        self._replies: list[RecordedReply] = []
        self.ends: dict[int, int] = {}
        """By shard: the offset in its log after the write, once it is acknowledged."""

    def step(self) -> None:
        for shard in self._order[: len(self.ends) + 1]:
            if len(self._replies) == len(self.ends):
                self._replies.append(self._shards[shard].send_append("t", 1))
            self._shards[shard].settle()
            if not self._replies[-1].has_answer:
                return
            place = self._shards[shard].shard.log.place
            assert place is not None
            self.ends.setdefault(shard, place.offset)


class Server:
    """The supervisor's side of two shards; `on_hold` runs after a shard has answered a hold."""

    def __init__(self, held_first: int, writes_first_to: int) -> None:
        self.shards = [OneShard(shard=number, shards=2) for number in range(2)]
        for one in self.shards:
            one.append("t", 0)
        self.client = CausalClient(self.shards, writes_first_to)
        self._holds = [BackupHold(one.shard.state) for one in self.shards]
        self._held_first = held_first
        self._are_held: set[int] = set()
        self._turn = asyncio.Event()
        self.points = BackupPoints(self._ask, range(2), lambda shard: True, SystemClock())

    async def _ask(self, shard: int, kind: LinkKind, payload: bytes, seconds: float) -> bytes | None:
        if kind == LinkKind.HOLD and shard != self._held_first:
            # The hold of this shard is delayed; meanwhile the client goes as far as it can.
            await asyncio.wait_for(self._turn.wait(), 5)
        answers: list[bytes] = []
        self._holds[shard].answer_link(kind, answers.append)
        self.shards[shard].settle()
        if kind == LinkKind.HOLD and shard == self._held_first:
            self.client.step()
            self.client.step()
            self._turn.set()
        return answers[0]


@pytest.mark.parametrize("held_first", [0, 1])
@pytest.mark.parametrize("writes_first_to", [0, 1])
def test_no_point_has_a_write_without_the_one_acknowledged_before_it(
    held_first: int, writes_first_to: int
) -> None:
    """B1, H1."""
    server = Server(held_first, writes_first_to)
    answer = asyncio.run(server.points.take())
    assert isinstance(answer, dict), answer
    for _ in range(3):
        server.client.step()
    assert len(server.client.ends) == 2, "the writes continue after the point"
    points = answer["shards"]
    assert isinstance(points, list)
    is_in = {shard: end <= points[shard]["offset"] for shard, end in server.client.ends.items()}
    assert not is_in[1 - writes_first_to] or is_in[writes_first_to]
