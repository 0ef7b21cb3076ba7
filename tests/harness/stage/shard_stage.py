"""A few shards with their workers' request handling and the links between them, without a socket.

Promises: the shards share a clock; topics are placed as a server places them. Each shard has what its worker
has, except connections: feeds, routes, watch sessions, dead letters and redrives work between the shards. A
link can be cut, full or lossy (`fake_links.py`). A shard may end in any way and start again while the others
continue: its links are lost with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from typing import Any

from shared.contract.api_keys import parse_keys
from shared.contract.errors import NOT_READY, Refusal
from shared.contract.names import topic_id
from shared.ipc.link import LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import shard_of
from shared.ipc.shared_placement import SharedPlacement
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.fake_links import FakeLinks
from tests.harness.stage.small_board import SmallBoard
from topicsd.service.dispatch import Dispatch
from topicsd.service.routes import ROUTE_REQUESTS
from topicsd.service.shards.peers import Peers
from topicsd.service.watch.streams import FOLLOW_REQUESTS


class StagePeers(Peers):
    """The other shards, which are unavailable while the links to them are cut."""

    def __init__(self, stage: ShardStage, number: int) -> None:
        super().__init__(stage.board, stage.clock, number)
        self._stage = stage
        self._links = stage.links[number]

    @property
    def broker_numbers(self) -> Sequence[int]:
        return self._stage.broker_numbers

    def refusal(self, shard: int) -> Refusal | None:
        if not self._links.is_cut(shard):
            return None
        return Refusal(NOT_READY, f"shard {shard} is gone", {"shard": shard}, 1000)


class ShardStage:
    broker_numbers: Sequence[int] = ()

    def __init__(
        self,
        shard_count: int,
        *,
        disk: MemoryDisk | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        """Open the shards; `disk` is that of the first one."""
        self.clock = clock or ManualClock()
        self.shards = [
            OneShard(
                shard=number,
                shards=shard_count,
                disk=None if number else disk,
                clock=self.clock,
                **settings,
            )
            for number in range(shard_count)
        ]
        self.board = SmallBoard(shard_count, self.clock).board
        self.links = [
            FakeLinks(number, shard_count, self._loop_of, self._answer_at) for number in range(shard_count)
        ]
        self.workers = [self._start_worker(number) for number in range(shard_count)]

    def _loop_of(self, number: int) -> ManualLoop:
        return self.shards[number].loop

    def _start_worker(self, number: int) -> Dispatch:
        peers = StagePeers(self, number)
        shard, keys = self.shards[number].shard, parse_keys("")
        placement = SharedPlacement.fixed(len(self.shards))
        return Dispatch(shard, keys, self.links[number], number, placement, peers=peers)

    def _answer_at(self, number: int, kind: LinkKind, payload: bytes, reply: LinkReply) -> None:
        """Answer a reply of another shard, as the worker of this one does."""
        dispatch = self.workers[number]
        if kind == LinkKind.REQUEST:
            dispatch.answer_link(payload, reply)
        elif kind == LinkKind.MOVE:
            dispatch.moves.answer_link(payload, reply)
        elif kind in FOLLOW_REQUESTS:
            dispatch.streams.answer_link(kind, payload, reply)
        else:
            assert kind in ROUTE_REQUESTS
            dispatch.route_rules.answer_link(kind, payload, reply)

    def number_of(self, topic: str) -> int:
        return shard_of(topic_id(topic), len(self.shards))

    def topics_on(self, number: int, count: int) -> list[str]:
        """Return names of topics that this shard owns."""
        names = (f"t{at}" for at in itertools.count())
        return list(islice((name for name in names if self.number_of(name) == number), count))

    def owner(self, topic: str) -> OneShard:
        return self.shards[self.number_of(topic)]

    # -- progress ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run until all shards are idle."""
        self.run_until_idle()

    def run_until_idle(self) -> None:
        """Run until all shards are idle; no time passes."""
        quiet = 0
        while quiet < 2:
            was_busy = [one.loop.ready_count for one in self.shards]
            for one in self.shards:
                one.settle()
            is_busy = any(was_busy) or any(one.loop.ready_count for one in self.shards)
            quiet = 0 if is_busy else quiet + 1

    def pass_time(self, ms: float) -> None:
        """Advance time and run the background work that becomes due."""
        end_ns = self.clock.monotonic_ns() + round(ms * 1e6)
        self.run_until_idle()
        while self.run_next_timer(end_ns):
            pass
        self.clock.advance_ns(max(0, end_ns - self.clock.monotonic_ns()))

    def run_next_timer(self, until_ns: int) -> bool:
        """Advance time to the next timer and run what it makes ready; return False if none is due by then."""
        due_ns = self._next_timer_ns()
        if due_ns > until_ns:
            return False
        self.clock.advance_ns(max(0, round(due_ns) - self.clock.monotonic_ns()))
        self.run_until_idle()
        return True

    def _next_timer_ns(self) -> float:
        timers = (one.loop.next_timer_ns() for one in self.shards)
        return min((ns for ns in timers if ns is not None), default=inf)

    # -- faults --------------------------------------------------------------------------------------------

    def cut_off(self, number: int) -> None:
        """Cut all links from and to a shard."""
        for other, links in enumerate(self.links):
            if other != number:
                links.cut(number)
                self.links[number].cut(other)

    def reconnect(self) -> None:
        for links in self.links:
            for number in range(len(self.shards)):
                links.reconnect(number)

    def end(self, number: int, how: Callable[[OneShard], object]) -> None:
        """End one of the shards, and start it again with all links."""
        self.links[number].lose()
        self.cut_off(number)
        how(self.shards[number])
        self.workers[number] = self._start_worker(number)
        self.reconnect()
