"""Two shards that move records to each other, without a socket: either can be lost at any call of its disk.

Promises: topics whose names end with the number of a shard live there. A question to the other shard takes a
turn of the loop each way. Who is lost starts again at once on the disk that such an end leaves: what it had
asked has no answer any more, and what it was asked is answered as in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shared.contract.errors import IN_DOUBT, Refusal
from shared.http.head import NO_FIELDS
from tests.harness.faults import MachineGoneError
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.harness.one_shard import OneShard, Told
from topicsd.service.call import Call
from topicsd.service.handlers import Handlers
from topicsd.service.queues.dead_letters import DeadLetters
from topicsd.service.queues.redrive import Redrives

FIELDS = msgspec.structs.replace(NO_FIELDS, content_type="application/json")
Again = Callable[[MemoryDisk], MemoryDisk]
"""The disk after an end, for who starts again."""


class Asked(Call, kw_only=True, eq=False):
    told: Callable[[int, bytes], object]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.told(status, b"".join(parts))


class _Side:
    """One worker, until it is lost."""

    def __init__(self, stage: MoveStage, shard: OneShard) -> None:
        self.shard = shard
        self.unanswered: list[Call] = []
        """What the other one asked."""
        self.handlers = Handlers(shard.shard, shard.settings, shard.loop)
        state, ask = shard.shard.state, partial(stage.ask, self)
        self.dead_letters = DeadLetters(state, shard.loop, ask)
        redrives = Redrives(state, shard.loop, ask, self.handlers.performance)
        self.handlers.add("redrive", redrives.start)


class MoveStage:
    def __init__(self, again: Again = MemoryDisk.after_process_kill, **settings: Any) -> None:
        self.clock = ManualClock()
        self.losses = 0
        self.loses_answers = False
        """What the other shard answers is lost on its way, each time."""
        self._failures: list[AssertionError] = []
        self._again = again
        self.shards = [OneShard(clock=self.clock, **settings) for _ in range(2)]
        self._sides = [_Side(self, shard) for shard in self.shards]

    def home(self, topic: str) -> OneShard:
        return self.shards[int(topic[-1])]

    def names_asked(self, side: int, operation: str) -> list[str]:
        """The topics that a shard is asked to do this to, from now on."""
        asked: list[str] = []
        handlers = self._sides[side].handlers
        start = handlers._table[operation]

        def noted(call: Call) -> None:
            asked.append(call.name)
            start(call)

        handlers.add(operation, noted)
        return asked

    # -- between the two -----------------------------------------------------------------------------------

    def ask(self, asker: _Side, operation: str, call: Call) -> None:
        owner = self._sides[int(call.name[-1])]
        if owner is asker:
            owner.handlers.start(operation, call)
            return
        owner.unanswered.append(call)

        def told(status: int, body: bytes) -> None:
            if call in owner.unanswered:
                asker.shard.loop.call_soon(in_doubt if self.loses_answers else arrived, status, body)

        def in_doubt(status: int, body: bytes) -> None:
            if call in owner.unanswered:
                owner.unanswered.remove(call)
                call.refuse(Refusal(IN_DOUBT, "its answer was lost"))

        def arrived(status: int, body: bytes) -> None:
            if call in owner.unanswered:
                owner.unanswered.remove(call)
                call.send_parts([body], len(body), status)

        asked = Asked(call.name, call.query, call.fields, call.body, 0.0, told=told)
        owner.shard.loop.call_soon(owner.handlers.start, operation, asked)

    def lose(self, number: int) -> None:
        """One of the two ends, and another one takes its place."""
        self.losses += 1
        shard, lost = self.shards[number], self._sides[number]
        shard.open(self._again(shard.disk))
        self._sides[number] = _Side(self, shard)
        self._sides[1 - number].unanswered.clear()
        in_doubt, lost.unanswered = lost.unanswered, []
        for call in in_doubt:
            call.refuse(Refusal(IN_DOUBT, "it went away"))

    # -- how it goes on ------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Until nothing is under way any more; who is lost meanwhile comes back."""
        self._settle()
        if self._failures:
            raise self._failures[0]

    def _settle(self) -> None:
        while True:
            for number, shard in enumerate(self.shards):
                try:
                    shard.settle()
                except MachineGoneError:
                    self.lose(number)
            if not any(one.loop.ready_count or one.thread.pending for one in self.shards):
                return

    def pass_time(self, ms: int) -> None:
        for _ in range(max(1, ms // 100)):
            self.clock.advance_ns(100_000_000)
            self.settle()

    def send(
        self, operation: str, topic: str, body: object, then: Callable[[Any], object] = lambda answer: None
    ) -> Told:
        """A request of a client of the topic's shard; its answer is a status and a body. `then` gets the
        body when it comes."""
        told = Told()

        def answered(status: int, text: bytes) -> None:
            # Who answers would take a failure of this for one of its own.
            try:
                told((status, msgspec.json.decode(text)))
                then(told.answer[1])
            except AssertionError as error:
                self._failures.append(error)

        call = Asked(topic, "", FIELDS, msgspec.json.encode(body), 0.0, told=answered)
        self.start(operation, call)
        return told

    def start(self, operation: str, call: Call) -> None:
        number = int(call.name[-1])
        try:
            self._sides[number].handlers.start(operation, call)
        except MachineGoneError:
            self.lose(number)

    def request(self, operation: str, topic: str, body: object) -> tuple[int, Any] | None:
        """The answer; None when the shard was lost before it."""
        told = self.send(operation, topic, body)
        losses = self.losses
        self.settle()
        while not told.came and self.losses == losses:
            self.pass_time(100)
        return told.answer if told.came else None

    def records(self, topic: str) -> list[Any]:
        """What lies there, as a reader gets it."""
        return [
            (msgspec.json.decode(one.data), None if one.meta is None else msgspec.json.decode(one.meta))
            for one in self.home(topic).read(topic, limit=1000).records
        ]
