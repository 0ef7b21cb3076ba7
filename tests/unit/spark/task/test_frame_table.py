from __future__ import annotations

import numpy as np
import pytest

from spark.source.columns import all_columns, arrow_schema
from spark.task.frame_table import FrameTable
from spark.task.record_batch import Rows, batch_of
from topicsd.log.frame import FrameType, encode_frame, payload_with_meta

TOPIC_ID = 7
FRAMES = [
    encode_frame(FrameType.APPEND, topic_id=TOPIC_ID, seq=1, ts=1000, tag=b"red", payload=b'{"n":1}'),
    encode_frame(FrameType.APPEND, topic_id=TOPIC_ID, seq=2, ts=1001, node=b"n1", payload=b"2"),
    encode_frame(
        FrameType.APPEND,
        topic_id=TOPIC_ID,
        seq=3,
        ts=1002,
        payload=payload_with_meta(b'"three"', '{"ü":"x","n":[1]}'.encode()),
        has_meta=True,
    ),
    encode_frame(FrameType.APPEND, topic_id=TOPIC_ID, seq=4, ts=1003, payload=b"null"),
]


def table(frames: list[bytes], between: bytes = b"", seqs: list[int] | None = None) -> FrameTable:
    starts, data = [], b""
    for frame in frames:
        data += between
        starts.append(len(data))
        data += frame
    lengths = np.array([len(frame) for frame in frames], dtype=np.int64)
    expected_seqs = np.array(seqs or range(1, len(frames) + 1), dtype=np.int64)
    return FrameTable(data, np.array(starts, dtype=np.int64), lengths, TOPIC_ID, expected_seqs)


@pytest.mark.parametrize("between", [b"", b"what is of another topic"])
def test_frames_become_columns(between: bytes) -> None:
    frames = table(FRAMES, between)
    assert not frames.bad.any()
    columns = all_columns(False, True) | all_columns(True, False)
    rows = Rows("orders", 3, np.arange(1, 5), np.arange(1000, 1004), frames)
    batch = batch_of(rows, arrow_schema(list(columns), columns)).to_pydict()
    assert batch["value"] == [b'{"n":1}', b"2", b'"three"', b"null"]
    assert batch["data"] == ['{"n":1}', "2", '"three"', "null"]
    assert batch["key"] == [b"red", None, None, None]
    assert batch["tag"] == ["red", None, None, None]
    assert batch["node"] == [None, "n1", None, None]
    assert batch["meta"] == [None, None, '{"ü":"x","n":[1]}', None]
    assert batch["offset"] == batch["seq"] == [1, 2, 3, 4]
    assert [stamp.timestamp() for stamp in batch["timestamp"]] == [1.0, 1.001, 1.002, 1.003]
    assert (set(batch["topic"]), set(batch["partition"]), set(batch["timestampType"])) == (
        {"orders"},
        {3},
        {1},
    )
    assert batch["headers"] == [
        None,
        [{"key": "node", "value": b"n1"}],
        [{"key": "ü", "value": b"x"}, {"key": "n", "value": b"[1]"}],
        None,
    ]


def test_every_bit_of_a_frame_counts() -> None:
    frame = FRAMES[2]
    for at in range(len(frame) * 8):
        changed = bytearray(frame)
        changed[at // 8] ^= 1 << at % 8
        assert table([FRAMES[0], FRAMES[1], bytes(changed)]).bad.tolist() == [False, False, True], at


def test_a_frame_of_another_seq_or_topic_is_none() -> None:
    assert table(FRAMES, seqs=[1, 2, 3, 5]).bad.tolist() == [False, False, False, True]
    other = encode_frame(FrameType.APPEND, topic_id=8, seq=2, ts=1, payload=b"1")
    assert table([FRAMES[0], other]).bad.tolist() == [False, True]


def test_what_runs_past_the_bytes_is_marked() -> None:
    data = FRAMES[0] + FRAMES[1][:-1]
    starts = np.array([0, len(FRAMES[0])], dtype=np.int64)
    lengths = np.array([len(FRAMES[0]), len(FRAMES[1])], dtype=np.int64)
    frames = FrameTable(data, starts, lengths, TOPIC_ID, np.array([1, 2], dtype=np.int64))
    assert frames.bad.tolist() == [False, True]
