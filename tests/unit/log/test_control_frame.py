from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.route_rule import RouteRule, WebhookOptions
from shared.contract.schedule_rule import ScheduleRule
from shared.contract.topic_config import TopicConfig
from topicsd.log import control_frame
from topicsd.log.control_frame import ControlPayload, decode_control, encode_control
from topicsd.log.frame import FLAG_DURABLE, FrameDamage, FrameType, LogFrame, encode_frame, parse_frame

CONFIG = TopicConfig(ttl_ms=5, cap_records=6, durability="fsync", priority=-7, dead_letter="dead")

CONTROLS: list[ControlPayload] = [
    control_frame.TopicCreate("a-topic", CONFIG, 256),
    control_frame.TopicDelete(3),
    control_frame.ConfigUpdate(CONFIG, 1 << 40),
    control_frame.Delete(9, None, False),
    control_frame.Delete(1 << 62, "tag-ä", True),
    control_frame.Delete(0, None, False, [3, 1 << 40], True),
    control_frame.Lease(1, [3, 4], [1, 2], [1 << 61, (1 << 62) - 1], 1 << 41, "worker-ä"),
    control_frame.Lease(2, [3], [1], [], 1 << 41, "", "no disk"),
    control_frame.EvictWatermark({"ttl": 17, "cap": 3}),
    control_frame.EvictWatermark({}),
    control_frame.HeadWatermark(0),
    control_frame.Idempotency(b"k" * 16, b"r" * 16, 1, 10_000),
    control_frame.ProducerFrame("p-ä", 1 << 62, 1, 10_000),
    control_frame.LostRangeFrame(11, 266, "crash"),
    control_frame.Cursor("c", 1 << 62, 5, False),
    control_frame.Cursor("c", 0, 5, True),
    control_frame.Schedule("s", 1 << 41, 1 << 62),
    control_frame.Schedule("s", is_gone=True),
    control_frame.Schedule(
        "s", 0, 0, ScheduleRule("@daily", "Europe/Berlin", b"1", b'{"a":1}', "tä", 9, "all", True)
    ),
    control_frame.ForwardCreate(RouteRule("a>b", "a", "b"), 1 << 40, 17, 1 << 41),
    control_frame.ForwardCreate(
        RouteRule("r", "a", "b", ["Eq", "x", "ä*"], False, False, False, True, True, True), 3, 0, 0
    ),
    control_frame.ForwardCreate(
        RouteRule("r", "a", "https://b.example/", webhook=WebhookOptions("whsec_x", True, 7, 500, "d", 3)),
        3,
        0,
        0,
    ),
    control_frame.ForwardDelete("a>b"),
    control_frame.ForwardCursor("a>b", 1 << 41, 10_000),
    control_frame.ForwardCursor("a>b", 1 << 41, 3, 1 << 40, 1 << 50, [59, 1 << 31], [100, 1 << 20]),
]


def frame_of(frame_type: int, fields: Any) -> LogFrame:
    payload = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    frame = encode_frame(frame_type, topic_id=7, payload=payload)
    return parse_frame(frame, 0, len(frame))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_every_control_comes_back_as_it_was(control: ControlPayload) -> None:
    encoded = encode_control(control, topic_id=1 << 63, ts=1000, durable=True)
    frame = parse_frame(encoded, 0, len(encoded))
    assert (frame.topic_id, frame.seq, frame.ts, frame.flags) == (1 << 63, 0, 1000, FLAG_DURABLE)
    assert decode_control(frame) == control


def test_every_control_has_a_frame_type_of_its_own() -> None:
    types = {type(control): encode_control(control, topic_id=0, ts=0)[4] for control in CONTROLS}
    assert len(set(types.values())) == len(types)
    assert types[control_frame.TopicCreate] == FrameType.TOPIC_CREATE
    assert types[control_frame.Delete] == FrameType.DELETE


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_a_field_of_a_newer_release_is_passed_over(control: ControlPayload) -> None:
    frame = parse_frame(encoded := encode_control(control, topic_id=7, ts=0), 0, len(encoded))
    fields = msgspec.msgpack.decode(frame.payload)
    assert decode_control(frame_of(frame.type, [*fields, "new", {"even": "more"}])) == control


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: type(control).__name__)
def test_a_payload_that_lacks_a_field_without_a_default_is_damage(control: ControlPayload) -> None:
    frame = parse_frame(encoded := encode_control(control, topic_id=7, ts=0), 0, len(encoded))
    fields = msgspec.msgpack.decode(frame.payload)
    required = sum(one.required for one in msgspec.structs.fields(type(control)))
    with pytest.raises(FrameDamage, match=f"{FrameType(frame.type).name} frame is damaged"):
        decode_control(frame_of(frame.type, fields[: required - 1]))


def test_a_configuration_of_an_older_release_gets_the_defaults_of_what_came_since() -> None:
    frame = frame_of(FrameType.TOPIC_CREATE, ["t", {"ttl_ms": 5}, 256])
    assert decode_control(frame) == control_frame.TopicCreate("t", TopicConfig(ttl_ms=5), 256)


def test_a_configuration_of_a_newer_release_is_read_without_what_is_not_known() -> None:
    config = {**msgspec.to_builtins(CONFIG), "colour": "green"}
    frame = frame_of(FrameType.CONFIG_UPDATE, [config, 256])
    assert decode_control(frame) == control_frame.ConfigUpdate(CONFIG, 256)


def test_a_configuration_is_written_with_every_field() -> None:
    encoded = encode_control(control_frame.ConfigUpdate(TopicConfig(), 0), topic_id=7, ts=0)
    config = msgspec.msgpack.decode(parse_frame(encoded, 0, len(encoded)).payload)[0]
    assert set(config) == set(TopicConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("frame_type", "payload"),
    [
        (FrameType.HEAD_WATERMARK, b""),
        (FrameType.HEAD_WATERMARK, b"\xc1"),
        (FrameType.HEAD_WATERMARK, ["many"]),
        (FrameType.HEAD_WATERMARK, {"ceiling": 5}),
        (FrameType.DELETE, [1, 2, True]),
        (FrameType.TOPIC_CREATE, ["t", {"durability": "eternal"}, 0]),
        (FrameType.EVICT_WATERMARK, [{"ttl": "much"}]),
        (FrameType.IDEMPOTENCY, ["key", "records", 1, 1]),
        (FrameType.LOST_RANGE, b"\x93\x01\x02"),
    ],
)
def test_a_payload_that_is_none_is_damage(frame_type: int, payload: Any) -> None:
    with pytest.raises(FrameDamage, match="is damaged"):
        decode_control(frame_of(frame_type, payload))


@pytest.mark.parametrize("frame_type", [FrameType.APPEND, FrameType.BATCH_END, FrameType.FILE_HEADER])
def test_a_frame_without_a_control_payload_is_damage(frame_type: int) -> None:
    with pytest.raises(FrameDamage, match=f"frame type {int(frame_type)} has no control payload"):
        decode_control(frame_of(frame_type, []))


def test_random_payloads_are_a_control_or_damage_and_nothing_else() -> None:
    rng = Random(11)
    types = [encode_control(control, topic_id=0, ts=0)[4] for control in CONTROLS]
    for _ in range(3000):
        frame = frame_of(rng.choice(types), rng.randbytes(rng.randrange(30)))
        with suppress(FrameDamage):
            decode_control(frame)
