"""A WebSocket under random operations delivers the seqs of a topic without a gap or a repetition.

Random operations on three topics and one socket: writes, caps, deletes, a client that stops reading,
subscribes and unsubscribes. From each `subscribed` on, every seq after its position is reported once: as a
record with the acknowledged data, within a tombstone, or with the deletion of its topic.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.stage.one_connection import SHARDS
from tests.harness.stage.one_socket import OneSocket

STEPS = 150
NAMES = [name for name in (f"life{n}" for n in range(40)) if shard_of(topic_id(name), SHARDS) == 0][:3]


class Life:
    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._socket = OneSocket()
        self._written: dict[tuple[str, int], dict[int, int]] = {}
        """Data by seq, of each incarnation of a topic."""
        self._positions: dict[str, tuple[int, int]] = {}
        """Epoch and seq of each followed topic."""
        self._values = count()

    def live(self) -> None:
        steps = (self._write, self._write, self._write, self._cap, self._delete, self._pause, self._resume)
        for _ in range(STEPS):
            self._rng.choice((*steps, self._subscribe, self._unsubscribe, self._check_messages))()
        self._resume()
        for name in NAMES:
            self._write(name)
        self._check_messages()
        for name, (epoch, seq) in self._positions.items():
            assert seq == max(self._written[name, epoch]), "the last record was not delivered"

    # -- operations ----------------------------------------------------------------------------------------

    def _name(self) -> str:
        return self._rng.choice(NAMES)

    def _one(self) -> Any:
        return self._socket.worker.one

    def _write(self, name: str | None = None) -> None:
        name = name or self._name()
        values = [next(self._values) for _ in range(self._rng.randrange(1, 4))]
        answer = self._one().append(name, *values)
        written = self._written.setdefault((name, self._one().state(name).epoch), {})
        written.update(zip(range(answer.first_seq, answer.last_seq + 1), values, strict=True))

    def _cap(self) -> None:
        name = self._name()
        if self._exists(name):
            self._one().put(name, cap_records=self._rng.choice([0, 1, 3]))

    def _delete(self) -> None:
        if self._rng.random() < 0.3:
            self._check_messages()
            self._one().delete_topic(self._name())

    def _exists(self, name: str) -> bool:
        return self._one().shard.state.visible_topic(name) is not None

    def _pause(self) -> None:
        self._socket.wire.is_paused = True

    def _resume(self) -> None:
        self._socket.wire.is_paused = False
        self._socket.session.ready()

    def _subscribe(self) -> None:
        name = self._name()
        if self._exists(name):
            self._check_messages()
            place: dict[str, Any] = {"tail": True}
            if self._rng.random() < 0.7:
                place = {"from_seq": self._rng.randrange(self._one().state(name).head_seq + 1)}
            self._socket.say("subscribe", topics={name: place}, limit=self._rng.choice([0, 1, 2]))
            self._check_messages()

    def _unsubscribe(self) -> None:
        name = self._name()
        self._socket.say("unsubscribe", topic=name)
        self._check_messages()
        assert name not in self._positions

    # -- messages ------------------------------------------------------------------------------------------

    def _check_messages(self) -> None:
        for message in self._socket.settle():
            getattr(self, "_" + message["op"])(message)

    def _subscribed(self, message: Any) -> None:
        for name, place in message["topics"].items():
            self._positions[name] = (place["epoch"], place["from_seq"])

    def _unsubscribed(self, message: Any) -> None:
        for name in message["topics"]:
            del self._positions[name]

    def _record(self, message: Any) -> None:
        name, epoch = message["topic"], message["epoch"]
        known_epoch, seq = self._positions[name]
        assert epoch == known_epoch
        written = self._written[name, epoch]
        for record in message["records"]:
            assert record["$seq"] == seq + 1
            seq = record["$seq"]
            assert record["data"] == written[seq]
        assert seq == message["to_seq"]
        self._positions[name] = (epoch, seq)

    def _tombstone(self, message: Any) -> None:
        name, epoch = message["topic"], message["epoch"]
        known_epoch, seq = self._positions[name]
        if message["reason"] == "recreated":
            assert epoch != known_epoch
            seq = message["earliest_seq"] - 1
        else:
            assert (epoch, message["gap_from"]) == (known_epoch, seq + 1)
            seq = message["gap_to"]
        self._positions[name] = (epoch, seq)

    def _caught_up(self, message: Any) -> None:
        assert self._positions[message["topic"]] == (message["epoch"], message["head_seq"])

    def _topic_deleted(self, message: Any) -> None:
        del self._positions[message["topic"]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_socket_receives_every_seq_exactly_once(seed: int) -> None:
    Life(seed).live()
