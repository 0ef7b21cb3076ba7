"""Two shards of one directory and a supervisor, between which a topic is relocated as a server does it.

Promises: each of the three is a process that can be killed at any of its disk calls; when the supervisor is
lost, all are. `recover` starts what was lost, and runs until nothing changes any more.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any, Final, cast

from router.resharding.placement_writer import PlacementWriter
from shared.contract.errors import Refusal
from shared.ipc.board import PLACEMENT_VERSION
from shared.ipc.link import SUPERVISOR, Done, LinkCall, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement
from shared.ipc.placement_change import decode_placement_change, encode_placement_message
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.body_memory import SharedBody
from tests.harness.machine.manual_loop import ManualLoop
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.machine.process_disk import ProcessDisk
from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import DATA_DIR
from tests.harness.stage.fake_links import FakeLinks
from tests.harness.stage.small_board import SmallBoard
from topicsd.disk.fs import Fs
from topicsd.disk.placement_file import read_placement, write_placement
from topicsd.service.shards.arrivals import Arrivals
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.relocation import Relocated, Relocations
from topicsd.service.shards.relocation_target import RelocationTarget

SOURCE: Final = 0
TARGET: Final = 1
BOSS: Final = 2
"""The supervisor, as a process beside the two shards."""


class DiskPlacement(SharedPlacement):
    """The placement of one process, read through its disk."""

    def __init__(self, words: Any, fs: Fs) -> None:
        self._fs = fs
        super().__init__(words, "")

    def read(self) -> Placement:
        return read_placement(self._fs, DATA_DIR, 2)


class _Links(FakeLinks):
    """Links with a supervisor, which answers in one turn of the loop."""

    def __init__(self, stage: RelocationShards, shard: int) -> None:
        super().__init__(shard, 2, stage.loop_of, stage.answer_at)
        self._stage = stage
        self._number = shard

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        if name != SUPERVISOR:
            return super().call(name, kind, payload, done, body)
        assert kind == LinkKind.PLACE
        self._stage.loop_of(self._number).call_soon(self._ask, payload, done)
        return LinkCall(done)

    def _ask(self, payload: bytes, done: Done) -> None:
        refusal = asyncio.run(self._stage.writer.change(decode_placement_change(payload)))
        done(encode_placement_message(refusal))


class RelocationShards:
    def __init__(self, **settings: Any) -> None:
        first = OneShard(shard=SOURCE, shards=2, **settings)
        second = OneShard(shard=TARGET, shards=2, disk=first.disk, clock=first.clock, **settings)
        self.shards = [first, second]
        self.disk = first.disk
        for one in self.shards:
            one.close()
        self._pids = 100
        self._open_all()

    def _open_all(self) -> None:
        self.board = SmallBoard(2, self.shards[0].clock)
        self.processes = [ProcessDisk(self.disk) for _ in range(3)]
        words = self.board.board.head
        boss = cast(Fs, self.processes[BOSS])
        placement = DiskPlacement(words, boss)
        words[PLACEMENT_VERSION] = placement.current.version
        self.ended: list[None] = []
        self.writer = PlacementWriter(
            self.board.board,
            placement,
            partial(write_placement, boss, DATA_DIR),
            nullcontext,
            lambda: self.ended.append(None),
        )
        self.links = [_Links(self, number) for number in (SOURCE, TARGET)]
        self.placements: list[SharedPlacement] = [placement, placement]
        self.arrivals: list[Any] = [None, None]
        self.relocations: list[Any] = [None, None]
        self._targets: list[Any] = [None, None]
        for number in (SOURCE, TARGET):
            self._open(number)

    def _open(self, number: int) -> None:
        self._pids += 1
        self.board.begin(number, self._pids)
        process = self.processes[number] = ProcessDisk(self.disk)
        one = self.shards[number]
        one.open(cast(MemoryDisk, process))
        shard, links = one.shard, self.links[number]
        placement = self.placements[number] = DiskPlacement(self.board.board.head, cast(Fs, process))
        peers = Peers(self.board.board, one.clock, number)
        arrivals = Arrivals(shard.state, shard.adopter, placement, links, peers)
        self.arrivals[number] = arrivals
        self.relocations[number] = Relocations(shard, links, peers)
        self._targets[number] = RelocationTarget(shard, arrivals, peers)
        self.links[1 - number].reconnect(number)

    def loop_of(self, number: int) -> ManualLoop:
        return self.shards[number].loop

    def answer_at(self, number: int, kind: LinkKind, payload: bytes, reply: LinkReply) -> None:
        self.placements[number].refresh()
        self._targets[number].answer_link(kind, payload, reply)

    # -- progress ------------------------------------------------------------------------------------------

    def start(self, name: str, source: int = SOURCE) -> list[Relocated | Refusal | Exception]:
        """Start to relocate a topic to the other shard; the outcome is added to the list."""
        outcomes: list[Relocated | Refusal | Exception] = []
        job = self.relocations[source].relocate(name, 1 - source)
        self.shards[source].shard.state.jobs.start(job, outcomes.append)
        return outcomes

    def run(self, ms: float = 3000) -> None:
        """Run both shards for some time; raise MachineGoneError when a process is lost."""
        clock = self.shards[0].clock
        end = clock.monotonic() + ms / 1000
        while clock.monotonic() < end:
            self.turn(40)
            clock.advance_ns(50_000_000)
            for number in (SOURCE, TARGET):
                self.board.board.slot(number).beat_ms = int(clock.monotonic() * 1000)

    def turn(self, count: int) -> None:
        """Run so many turns of both shards; no time passes."""
        for _ in range(count):
            for one in self.shards:
                one.turn()

    def recover(self, *, seed: int | None = None) -> None:
        """Start what was lost, until nothing is lost any more; with a seed, the machine lost its power."""
        if seed is not None or self.processes[BOSS].is_dead or self.ended:
            after = self.disk.after_process_kill() if seed is None else None
            self.disk = after or self.disk.after_power_cut(Random(seed))
            self._open_all()
        for number in (SOURCE, TARGET):
            if self.processes[number].is_dead:
                self.processes[number].release()
                self.board.end(number)
                self.links[number].lose()
                self.links[1 - number].cut(number)
                self._open(number)
        self.run()

    def move(self, name: str, source: int = SOURCE) -> Any:
        outcomes = self.start(name, source)
        self.run()
        return outcomes[0]

    # -- what there is -------------------------------------------------------------------------------------

    def holders(self, name: str) -> list[int]:
        return [number for number, one in enumerate(self.shards) if name in one.shard.topic_names()]

    def owner(self, name: str) -> int:
        """Return the shard that serves the topic: it has it, and no other has."""
        (holder,) = self.holders(name)
        assert self.placements[holder].owner_of(name) == holder
        assert name not in self.arrivals[holder].hidden
        assert not self.shards[holder].topic(name).is_frozen
        return holder
