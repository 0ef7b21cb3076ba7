"""Random schemas, writes, and ends of the shard: no topic holds a record that its schema refused."""

from __future__ import annotations

import json
from random import Random

import pytest

from shared.contract.errors import SCHEMA_MISMATCH, TOPIC_EXISTS_INCOMPATIBLE
from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import AppendAnswer, TopicPut

OPERATIONS = 300
NAMES = ("a", "b")
NO_SCHEMA, MODES = None, ("off", "warn", "reject")


class SchemaEpisode:
    """Topics whose schemas are maxima: a higher number breaks them, and what is no number."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.one = OneShard(wal_file_bytes=16_384)
        self.maxima: dict[str, int | None] = dict.fromkeys(NAMES, NO_SCHEMA)
        self.modes: dict[str, str] = dict.fromkeys(NAMES, "reject")
        self.contents: dict[str, list[object]] = {name: [] for name in NAMES}
        self.refused = self.kept = self.ends = 0
        for name in NAMES:
            self.one.put(name, durability="fsync")

    def run(self, operations: int) -> None:
        steps = (self.put_schema, self.put_mode, self.append, self.append, self.append, self.append, self.end)
        for _ in range(operations):
            self.rng.choice(steps)()
        self.check()

    def put_schema(self) -> None:
        name, force = self.rng.choice(NAMES), self.rng.random() < 0.3
        before, after = self.maxima[name], self.rng.choice((NO_SCHEMA, 2, 4, 6, 8))
        schema = None if after is NO_SCHEMA else {"type": "number", "maximum": after}
        reply = self.one.send_put(name, schema=schema, force=force)
        self.one.settle()
        if not force and before is not None and after is not None and after < before:
            assert reply.code == TOPIC_EXISTS_INCOMPATIBLE, reply.answer
            self.kept += 1
            return
        assert isinstance(reply.answer, TopicPut), reply.answer
        self.maxima[name] = after

    def put_mode(self) -> None:
        name = self.rng.choice(NAMES)
        self.modes[name] = self.rng.choice(MODES)
        self.one.put(name, schema_mode=self.modes[name])

    def append(self) -> None:
        name = self.rng.choice(NAMES)
        data: list[object] = [
            self.rng.choice((self.rng.randrange(10), self.rng.random() * 10, 1, "text", None))
            for _ in range(self.rng.choice((1, 1, 2, 3)))
        ]
        broken = [at for at, value in enumerate(data) if self.is_broken(name, value)]
        reply = self.one.send_append(name, *data)
        self.one.settle()
        if broken and self.modes[name] == "reject":
            assert reply.code == SCHEMA_MISMATCH, reply.answer
            assert reply.answer.detail["index"] == broken[0]
            self.refused += 1
        else:
            assert isinstance(reply.answer, AppendAnswer), reply.answer
            self.contents[name] += data

    def is_broken(self, name: str, value: object) -> bool:
        maximum = self.maxima[name]
        return maximum is not None and not (isinstance(value, int | float) and value <= maximum)

    def end(self) -> None:
        if self.rng.random() < 0.5:
            self.one.checkpoint()
        end = self.rng.choice((OneShard.kill, OneShard.restart, OneShard.cut_power))
        end(self.one)
        self.ends += 1
        self.check()

    def check(self) -> None:
        for name in NAMES:
            config = self.one.state(name).config
            maximum = None if config.schema is None else json.loads(config.schema)["maximum"]
            assert (maximum, config.schema_mode) == (self.maxima[name], self.modes[name])
            records = self.one.read(name, limit=100_000).records
            assert [json.loads(record.data) for record in records] == self.contents[name]


@pytest.mark.parametrize("seed", range(6))
def test_topics_hold_exactly_what_their_schemas_accepted(seed: int) -> None:
    print("seed", seed)
    episode = SchemaEpisode(seed)
    episode.run(OPERATIONS)
    assert episode.refused > 10
    assert episode.ends > 10
    assert episode.kept > 0
