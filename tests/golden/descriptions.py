"""What clients see of an opened golden directory, as plain values that a file can hold."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

import msgspec

from shared.contract.reader_options import ReaderOptions
from tests.harness.shard.shard_reader import read_now
from topicsd.engine.requests import ReadAnswer, ReadRequest, TopicState
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import topic_state
from topicsd.log.frame import Record


def describe_routes(shard: Shard) -> dict[str, Any]:
    return {
        name: {
            "rule": {
                **msgspec.structs.asdict(route.rule),
                "webhook": msgspec.to_builtins(route.rule.webhook),
            },
            "source_epoch": route.source_epoch,
            "seq": route.seq,
            "source_head": route.source_head,
            "forwarded_total": route.forwarded_total,
        }
        for name, route in shard.state.routes.items()
    }


def describe_schedules(shard: Shard) -> dict[str, Any]:
    return {
        f"{topic.name}/{schedule.name}": {
            "rule": msgspec.to_builtins(msgspec.structs.asdict(schedule.rule)),
            "reached_ms": schedule.reached_ms,
            "last_seq": schedule.last_seq,
        }
        for topic in shard.state.queues_with_schedules
        for schedule in topic.schedules.values()
    }


def describe_sessions(shard: Shard) -> dict[str, Any]:
    return {
        session.hex(): {
            **msgspec.structs.asdict(session_frame),
            "session": session.hex(),
            "match": msgspec.to_builtins(session_frame.match),
            "topic_filter": msgspec.to_builtins(session_frame.topic_filter, order="deterministic"),
        }
        for session, session_frame in shard.state.watch_sessions.items()
    }


def describe(shard: Shard) -> dict[str, Any]:
    """What clients see: states, and the answers that lead a reader from the start to the head."""
    topics: dict[str, Any] = {}
    for name in shard.topic_names():
        state = topic_state(shard.state, name)
        assert isinstance(state, TopicState)
        answers, cursor = [], 0
        while not answers or not answers[-1]["caught_up"]:
            answer = read_now(shard.state, name, ReadRequest(cursor, ReaderOptions(limit=100)))
            assert isinstance(answer, ReadAnswer)
            answers.append(described(answer))
            cursor = answer.next_from_seq
        state_fields = {
            field: getattr(state, field) for field in state.__struct_fields__ if field != "config"
        }
        config = msgspec.to_builtins(state.config)
        topics[name] = {"state": state_fields, "config": config, "answers": answers}
    return topics


def described(answer: ReadAnswer) -> dict[str, Any]:
    tombstone = answer.tombstone
    return {
        "tombstone": tombstone and {name: getattr(tombstone, name) for name in tombstone.__struct_fields__},
        "next_from_seq": answer.next_from_seq,
        "caught_up": answer.caught_up,
        "records": [
            [one.seq, one.ts, _data_text(one), *map(text_of, (one.tag, one.node, one.meta))]
            for one in answer.records
        ],
    }


def _data_text(one: Record) -> str | None:
    """Return JSON as it is, and bytes as base64 with a mark that no JSON begins with."""
    return f"base64:{b2a_base64(one.data, newline=False).decode()}" if one.is_bytes else text_of(one.data)


def text_of(part: bytes | None) -> str | None:
    return None if part is None else part.decode()
