"""Two shards that transfer records to each other, without a socket; either can be lost at any disk call.

Promises: a topic is placed on the shard whose number ends its name. A request to the other shard takes one
turn of the loop in each direction. A lost shard starts again at once on the disk that such an end leaves: its
own requests get no answer, and requests to it are answered as in doubt.
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
from tests.harness.one_shard import OneShard, RecordedReply
from topicsd.engine.transfer.dead_letters import DeadLetters
from topicsd.engine.transfer.move import (
    Move,
    MoveReply,
    append_move,
    decode_move,
    decode_move_answer,
    encode_move,
    encode_move_answer,
)
from topicsd.engine.transfer.redrive import Redrives
from topicsd.service.call import Call
from topicsd.service.handlers import Handlers
from topicsd.service.queues.redrive import RedriveHandler
from topicsd.service.request_counts import RequestCounts

FIELDS = msgspec.structs.replace(NO_FIELDS, content_type="application/json")
IN_DOUBT_REFUSAL = Refusal(IN_DOUBT, "its answer was lost")
Again = Callable[[MemoryDisk], MemoryDisk]
"""The disk for the next start, made from the disk of the lost shard."""


class FakeCall(Call, kw_only=True, eq=False):
    send_answer: Callable[[int, bytes], object]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.send_answer(status, b"".join(parts))


class _Side:
    """One worker, until it is lost."""

    def __init__(self, stage: TransferShards, shard: OneShard) -> None:
        self.shard = shard
        self.unanswered: dict[object, MoveReply] = {}
        """Replies of the other worker to the moves that this one received."""
        self.destinations: list[str] = []
        """The destinations of all moves that this worker received."""
        state, send = shard.shard.state, partial(stage.send_move, self)
        counts = RequestCounts(state.clock)
        self.dead_letters = DeadLetters(state, send)
        redrives = RedriveHandler(Redrives(state, send), state.clock, counts.performance)
        self.handlers = Handlers(shard.shard, counts=counts, others={"redrive": redrives.start})

    def append_move(self, move: Move, reply: MoveReply) -> None:
        self.destinations.append(move.destination)
        append_move(self.shard.shard.state, self.handlers.caps.append, move, reply)


class TransferShards:
    def __init__(self, again: Again = MemoryDisk.after_process_kill, **settings: Any) -> None:
        self.clock = ManualClock()
        self.losses = 0
        self.is_losing_answers = False
        """Whether answers of the other shard are lost in transit."""
        self._failures: list[AssertionError] = []
        self._again = again
        self.shards = [OneShard(clock=self.clock, **settings) for _ in range(2)]
        self._sides = [_Side(self, shard) for shard in self.shards]

    def home(self, topic: str) -> OneShard:
        return self.shards[int(topic[-1])]

    def destinations(self, side: int) -> list[str]:
        """Return the destinations of the moves that a shard has received, in order."""
        return self._sides[side].destinations

    # -- messages between the shards -----------------------------------------------------------------------

    def send_move(self, sender: _Side, move: Move, reply: MoveReply) -> None:
        owner = self._sides[int(move.destination[-1])]
        if owner is sender:
            owner.append_move(move, reply)
            return
        call = object()
        owner.unanswered[call] = reply

        def on_answer(refusal: Refusal | None) -> None:
            answer = encode_move_answer(refusal)
            if call in owner.unanswered:
                sender.shard.loop.call_soon(arrive, None if self.is_losing_answers else answer)

        def arrive(answer: bytes | None) -> None:
            if call in owner.unanswered:
                del owner.unanswered[call]
                reply(IN_DOUBT_REFUSAL if answer is None else decode_move_answer(answer))

        owner.shard.loop.call_soon(owner.append_move, decode_move(encode_move(move)), on_answer)

    def lose(self, number: int) -> None:
        """End one of the two, and start its replacement."""
        self.losses += 1
        shard, lost = self.shards[number], self._sides[number]
        shard.open(self._again(shard.disk))
        self._sides[number] = _Side(self, shard)
        self._sides[1 - number].unanswered.clear()
        in_doubt, lost.unanswered = lost.unanswered, {}
        for reply in in_doubt.values():
            reply(IN_DOUBT_REFUSAL)

    # -- progress ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run until nothing is in flight; lost shards are started again."""
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
    ) -> RecordedReply:
        """Send a client's request to the topic's shard; the answer is a status and a body.

        `then` receives the body when it arrives.
        """
        reply = RecordedReply()

        def answered(status: int, text: bytes) -> None:
            # Kept for `settle`: the handler would treat a failure here as its own.
            try:
                reply((status, msgspec.json.decode(text)))
                then(reply.answer[1])
            except AssertionError as error:
                self._failures.append(error)

        call = FakeCall(topic, "", FIELDS, msgspec.json.encode(body), 0.0, send_answer=answered)
        self.start(operation, call)
        return reply

    def start(self, operation: str, call: Call) -> None:
        number = int(call.name[-1])
        try:
            self._sides[number].handlers.start(operation, call)
        except MachineGoneError:
            self.lose(number)

    def request(self, operation: str, topic: str, body: object) -> tuple[int, Any] | None:
        """Send a request; return its answer, or None if the shard was lost before it."""
        reply = self.send(operation, topic, body)
        losses = self.losses
        self.settle()
        while not reply.has_answer and self.losses == losses:
            self.pass_time(100)
        return reply.answer if reply.has_answer else None

    def records(self, topic: str) -> list[Any]:
        """Return the records of a topic as a reader receives them."""
        return [
            (msgspec.json.decode(one.data), None if one.meta is None else msgspec.json.decode(one.meta))
            for one in self.home(topic).read(topic, limit=1000).records
        ]
