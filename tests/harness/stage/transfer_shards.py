"""Two shards that transfer records to each other, without a socket; either can be lost at any disk call.

Promises: a lost shard starts again at once on the disk that such an end leaves: its own requests get no
answer, and requests to it are answered as in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shared.http.head import NO_FIELDS
from shared.ipc.link import LinkReply
from shared.ipc.link_kind import LinkKind
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import RecordedReply
from tests.harness.stage.shard_stage import ShardStage
from topicsd.engine.transfer.move import decode_move
from topicsd.service.call import Call

FIELDS = msgspec.structs.replace(NO_FIELDS, content_type="application/json")
Again = Callable[[MemoryDisk], MemoryDisk]
"""The disk for the next start, made from the disk of the lost shard."""


class FakeCall(Call, kw_only=True, eq=False):
    send_answer: Callable[[int, bytes], object]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.send_answer(status, b"".join(parts))


class TransferShards(ShardStage):
    def __init__(self, again: Again = MemoryDisk.after_process_kill, **settings: Any) -> None:
        super().__init__(2, **settings)
        self.losses = 0
        self._failures: list[AssertionError] = []
        self._again = again
        self._destinations: tuple[list[str], list[str]] = ([], [])

    @property
    def is_losing_answers(self) -> bool:
        """Whether answers of the other shard are lost in transit."""
        return self.links[0].is_losing_answers

    @is_losing_answers.setter
    def is_losing_answers(self, is_losing: bool) -> None:
        for links in self.links:
            links.is_losing_answers = is_losing

    def destinations(self, number: int) -> list[str]:
        """Return the destinations of the moves that a shard has received over the links, in order."""
        return self._destinations[number]

    def _answer_at(self, number: int, kind: LinkKind, payload: bytes, reply: LinkReply) -> None:
        if kind == LinkKind.MOVE:
            self._destinations[number].append(decode_move(payload).destination)
        super()._answer_at(number, kind, payload, reply)

    def lose(self, number: int) -> None:
        """End one of the two, and start its replacement."""
        self.losses += 1
        self.end(number, lambda shard: shard.open(self._again(shard.disk)))

    def run_until_idle(self) -> None:
        """Run until nothing is in flight; lost shards are started again."""
        while True:
            try:
                super().run_until_idle()
                break
            except MachineGoneError:
                self._lose_dead()
        if self._failures:
            raise self._failures[0]

    def _lose_dead(self) -> None:
        for number, shard in enumerate(self.shards):
            if shard.disk.is_gone:
                self.lose(number)

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
        try:
            self.workers[self.number_of(call.name)].run_at_owner(operation, call)
        except MachineGoneError:
            self._lose_dead()

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
            for one in self.owner(topic).read(topic, limit=1000).records
        ]
