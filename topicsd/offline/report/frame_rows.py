"""One frame of the log as `inspect --frames` shows it, as a table row or a JSON object.

The data of a record is private, so only its size is shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contract.schedule_rule import ScheduleRule
from shared.settings.setting import SECRET_SHOWN
from topicsd.log.control_frame import ControlPayload, decode_control
from topicsd.log.frame import FLAG_BYTES, FLAG_DURABLE, FrameType, LogFrame, split_payload
from topicsd.offline.report.job_events import JobEvents
from topicsd.offline.report.topic import DEFAULTS
from topicsd.offline.table import NOTHING, escape_unprintable, size, utc

COLUMNS = (
    "{ordinal:>12}  {file:24}  {offset:>10}  {size:>9}  {type:15}  {time:24}  {seq:>10}  {topic}  {content}"
)
HEADINGS = {
    "ordinal": "ORDINAL",
    "file": "FILE",
    "offset": "OFFSET",
    "size": "SIZE",
    "type": "TYPE",
    "time": "TIME",
    "seq": "SEQ",
    "topic": "TOPIC",
    "content": "CONTENT",
}


class FrameRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The row of one frame. Fields that a frame of its type does not have are left out."""

    shard: int
    ordinal: int | None = None
    file: str
    offset: int
    size: int
    type: str
    ts: int
    time: str
    topic: str | None = None
    topic_id: str | None = None
    seq: int | None = None
    durable: bool = False
    is_bytes: bool = False
    """Whether the data of the record is not JSON but bytes."""
    data_bytes: int | None = None
    meta_bytes: int | None = None
    tag: str | None = None
    node: str | None = None
    event: str | None = None
    """The event of the jobs that the frame names."""
    control: dict[str, Any] | None = None


def frame_row(
    shard: int, ordinal: int, file: str, offset: int, frame: LogFrame, topic: str | None, events: JobEvents
) -> FrameRow:
    """Return the row of a frame; FrameDamage when its payload does not fit its type."""
    kind = FrameType(frame.type)
    data_bytes = meta_bytes = control = event = None
    has_topic = kind is not FrameType.WATCH_SESSION
    if kind is FrameType.APPEND:
        data, meta = split_payload(frame.payload, frame.flags)
        data_bytes, meta_bytes = len(data), None if meta is None else len(meta)
    else:
        frame_control = decode_control(frame)
        control, event = control_fields(frame_control), events.event(frame.topic_id, frame_control)
    return FrameRow(
        shard=shard,
        ordinal=ordinal,
        file=file,
        offset=offset,
        size=frame.size,
        type=kind.name.lower(),
        ts=frame.ts,
        time=utc(frame.ts),
        topic=topic,
        topic_id=f"{frame.topic_id:016x}" if has_topic else None,
        seq=frame.seq or None,
        durable=bool(frame.flags & FLAG_DURABLE),
        is_bytes=bool(frame.flags & FLAG_BYTES),
        data_bytes=data_bytes,
        meta_bytes=meta_bytes,
        tag=frame.tag.decode("utf-8", "backslashreplace") or None,
        node=frame.node.decode("utf-8", "backslashreplace") or None,
        event=event,
        control=control,
    )


def service_row(
    shard: int, file: str, offset: int, frame: LogFrame, says: dict[str, Any], ordinal: int | None = None
) -> FrameRow:
    """Return the row of a frame that structures the log: a file header or a BatchEnd."""
    return FrameRow(
        shard=shard,
        ordinal=ordinal,
        file=file,
        offset=offset,
        size=frame.size,
        type=FrameType(frame.type).name.lower(),
        ts=frame.ts,
        time=utc(frame.ts),
        control=says,
    )


def control_fields(control: ControlPayload) -> dict[str, Any]:
    """Return the fields of a control frame by name, without default values of a configuration."""
    fields: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(control).items():
        if name == "epoch" and not value:
            continue  # The epoch of the new topic is the ordinal of the frame.
        if isinstance(value, bytes):
            fields[name] = value.hex()
        elif name == "checksum":
            fields[name] = f"{value:016x}"  # Many JSON readers have no 64-bit integers.
        elif name == "config":
            config = msgspec.structs.asdict(value)
            fields[name] = {key: one for key, one in config.items() if one != DEFAULTS[key]}
        elif isinstance(value, ScheduleRule):
            rule = msgspec.structs.asdict(value)
            data, meta = rule.pop("data"), rule.pop("meta")
            fields[name] = {**rule, "data_bytes": len(data), "meta_bytes": len(meta)}
        else:
            fields[name] = _plain(value)
    return fields


def _plain(value: object) -> object:
    """Return a struct as its fields, without the secret of a webhook."""
    if not isinstance(value, msgspec.Struct):
        return value
    return {
        name: SECRET_SHOWN if name == "secret" else _plain(one)
        for name, one in msgspec.structs.asdict(value).items()
    }


def heading() -> str:
    return COLUMNS.format(**HEADINGS)


def row_text(row: FrameRow) -> str:
    topic = row.topic or (f"id {row.topic_id}" if row.topic_id is not None else NOTHING)
    return COLUMNS.format(
        ordinal=NOTHING if row.ordinal is None else row.ordinal,
        file=row.file,
        offset=row.offset,
        size=row.size,
        type=row.type,
        time=row.time,
        seq=row.seq or NOTHING,
        topic=escape_unprintable(topic),
        content=" ".join(_content(row)),
    ).rstrip()


def _content(row: FrameRow) -> list[str]:
    words = [] if row.event is None else [row.event]
    if row.data_bytes is not None:
        words.append(f"data={size(row.data_bytes).replace(' ', '')}")
    if row.meta_bytes is not None:
        words.append(f"meta={size(row.meta_bytes).replace(' ', '')}")
    for name, value in (("tag", row.tag), ("node", row.node)):
        if value is not None:
            words.append(f'{name}="{escape_unprintable(value)}"')
    for name, value in (row.control or {}).items():
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        words.append(f"{name}={escape_unprintable(shown)}")
    return words
