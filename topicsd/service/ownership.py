"""The endpoints of ownership: seal a topic, adopt it, and say which node has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from shared.contract.errors import NOT_IMPLEMENTED, Refusal
from topicsd.catalog.catalog import TopicRow
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.ownership.hand_on import HandOn
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.shard import Shard
from topicsd.engine.topic import Topic
from topicsd.service.call import Call, Performance, reply_of
from topicsd.service.input.json_body import JsonBody
from topicsd.service.render import encode


class SealBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    accept_loss: bool = False
    """Whether to drop the records of an ephemeral topic."""


class AdoptBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    accept_loss: bool = False
    """Whether to take over from a node that is lost, with what it has exported."""


_SEAL: Final = JsonBody(SealBody, '{"accept_loss":false}')
_ADOPT: Final = JsonBody(AdoptBody, '{"accept_loss":true}')


class Loss(NamedTuple):
    """The seqs that an adopt with `accept_loss` gave up."""

    lost_from: int
    lost_to: int
    exported_ts: int | None
    """The time of the last record before them: what was written later may be lost."""


def loss_of(topic: Topic) -> Loss | None:
    """Return what the last loss of a node took from a topic."""
    lost = next((one for one in reversed(topic.lost.ranges) if one.reason == "node_lost"), None)
    if lost is None:
        return None
    runs = [run for run in topic.runs if isinstance(run, SealedRun) and run.next_seq <= lost.first]
    return Loss(lost.first, lost.last, runs[-1].entry.last_ts if runs else None)


class OwnershipAnswer(NamedTuple):
    """The row of a topic, and after an adopt with `accept_loss` what it lost."""

    row: TopicRow
    loss: Loss | None


def _adopt(hand_on: HandOn, name: str, accept_loss: bool) -> BackgroundJob[OwnershipAnswer | Refusal]:
    topic = yield from hand_on.adopt(name, accept_loss)
    if isinstance(topic, Refusal):
        return topic
    loss = loss_of(topic) if accept_loss else None
    row = yield from hand_on.where(name)
    return row if isinstance(row, Refusal) else OwnershipAnswer(row, loss)


class OwnershipHandlers:
    def __init__(self, shard: Shard, performance: Performance) -> None:
        self._shard = shard
        self._performance = performance
        self.table: dict[str, Callable[[Call], None]] = {
            "seal": self._seal,
            "adopt": self._adopt,
            "owner": self._owner,
        }

    def _seal(self, call: Call) -> None:
        body = _SEAL.decode(call.body or b"{}")
        if isinstance(body, Refusal):
            call.refuse(body)
        elif (hand_on := self._hand_on(call)) is not None:
            self._run(call, hand_on.seal(call.name, body.accept_loss))

    def _adopt(self, call: Call) -> None:
        body = _ADOPT.decode(call.body or b"{}")
        if isinstance(body, Refusal):
            call.refuse(body)
        elif (hand_on := self._hand_on(call)) is not None:
            self._run(call, _adopt(hand_on, call.name, body.accept_loss))

    def _owner(self, call: Call) -> None:
        if (hand_on := self._hand_on(call)) is not None:
            self._run(call, hand_on.where(call.name))

    def _hand_on(self, call: Call) -> HandOn | None:
        hand_on = self._shard.hand_on
        if hand_on is None:
            call.refuse(Refusal(NOT_IMPLEMENTED, "the server has no object store: set TOPICS_STORE_URL"))
        return hand_on

    def _run(self, call: Call, job: BackgroundJob[Any]) -> None:
        def respond(outcome: TopicRow | OwnershipAnswer) -> None:
            row, loss = outcome if isinstance(outcome, OwnershipAnswer) else (outcome, None)
            body: dict[str, object] = {
                "topic": row.name,
                "epoch": row.incarnation,
                "node": row.owner,
                "is_here": row.owner == self._shard.identity.instance.hex(),
                "state": row.state,
                "owner_epoch": row.owner_epoch,
                "ceiling": row.ceiling,
                "exported_to": row.exported_to,
                **({} if loss is None else loss._asdict()),
                "performance": self._performance(call),
            }
            call.send(encode(body))

        hand_on = self._shard.hand_on
        assert hand_on is not None
        hand_on.run(job, reply_of(call, respond))
