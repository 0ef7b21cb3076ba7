"""Whatever happens around a WebSocket, what it is told of a topic has no hole and nothing twice.

A random life of three topics and one socket: writes, caps, deletes, a client that stops reading, subscribes
and unsubscribes. From each `subscribed` on every seq behind its place is told once: as a record with the data
that was acked, within a tombstone, or gone with a topic that was deleted.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.one_lane import SHARDS
from tests.harness.one_socket import OneSocket

STEPS = 150
NAMES = [name for name in (f"life{n}" for n in range(40)) if shard_of(topic_id(name), SHARDS) == 0][:3]


class Life:
    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._socket = OneSocket()
        self._written: dict[tuple[str, int], dict[int, int]] = {}
        """Data by seq, of each incarnation of a topic."""
        self._places: dict[str, tuple[int, int]] = {}
        """Epoch and seq of what is followed."""
        self._values = count()
        self._asked: dict[int, Any] = {}

    def live(self) -> None:
        steps = (self._write, self._write, self._write, self._cap, self._delete, self._clog, self._flow)
        for _ in range(STEPS):
            self._rng.choice((*steps, self._subscribe, self._unsubscribe, self._look))()
        self._flow()
        for name in NAMES:
            self._write(name)
        self._look()
        for name, (epoch, seq) in self._places.items():
            assert seq == max(self._written[name, epoch]), "the end is told"

    # -- what is done --------------------------------------------------------------------------------------

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
            self._look()
            self._one().delete_topic(self._name())

    def _exists(self, name: str) -> bool:
        return self._one().shard.state.visible_topic(name) is not None

    def _clog(self) -> None:
        self._socket.wire.is_clogged = True

    def _flow(self) -> None:
        self._socket.wire.is_clogged = False
        self._socket.session.ready()

    def _subscribe(self) -> None:
        name = self._name()
        if self._exists(name):
            self._look()
            place: dict[str, Any] = {"tail": True}
            if self._rng.random() < 0.7:
                place = {"from_seq": self._rng.randrange(self._one().state(name).head_seq + 1)}
            self._socket.say("subscribe", topics={name: place}, limit=self._rng.choice([0, 1, 2]))
            self._look()

    def _unsubscribe(self) -> None:
        name = self._name()
        self._socket.say("unsubscribe", topic=name)
        self._look()
        assert name not in self._places

    # -- what is told --------------------------------------------------------------------------------------

    def _look(self) -> None:
        for told in self._socket.settle():
            getattr(self, "_" + told["op"])(told)

    def _subscribed(self, told: Any) -> None:
        for name, place in told["topics"].items():
            self._places[name] = (place["epoch"], place["from_seq"])

    def _unsubscribed(self, told: Any) -> None:
        for name in told["topics"]:
            del self._places[name]

    def _record(self, told: Any) -> None:
        name, epoch = told["topic"], told["epoch"]
        known_epoch, seq = self._places[name]
        assert epoch == known_epoch
        written = self._written[name, epoch]
        for record in told["records"]:
            assert record["$seq"] == seq + 1
            seq = record["$seq"]
            assert record["data"] == written[seq]
        assert seq == told["to_seq"]
        self._places[name] = (epoch, seq)

    def _tombstone(self, told: Any) -> None:
        name, epoch = told["topic"], told["epoch"]
        known_epoch, seq = self._places[name]
        if told["reason"] == "recreated":
            assert epoch != known_epoch
            seq = told["earliest_seq"] - 1
        else:
            assert (epoch, told["gap_from"]) == (known_epoch, seq + 1)
            seq = told["gap_to"]
        self._places[name] = (epoch, seq)

    def _caught_up(self, told: Any) -> None:
        assert self._places[told["topic"]] == (told["epoch"], told["head_seq"])

    def _topic_deleted(self, told: Any) -> None:
        del self._places[told["topic"]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_a_socket_is_told_has_no_hole(seed: int) -> None:
    Life(seed).live()
