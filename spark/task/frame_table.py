"""Many frames at once: from the bytes of a file to columns of Arrow, without an object a record.

How: the places of the parts of all frames are computed as arrays of numbers. A column is then the file's own
bytes, seen as an array whose every second element is a part and every other one what lies between, of which
Arrow takes the first ones. The only thing done frame by frame is its checksum.

Frames of one topic stand in a file in the order of their seqs and do not overlap; that is all that is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_META,
    FLAGS_KNOWN,
    FRAME_LEN_MIN,
    HEADER_BYTES,
    LEN_BYTES,
    U32,
    FrameType,
    xxh3,
)

Numbers = npt.NDArray[np.int64]

# What a frame has on average up to which copying it costs less than a view of it.
SMALL_BYTES = 1024

_HEADER = np.dtype(
    [
        ("frame_len", "<u4"),
        ("type", "u1"),
        ("flags", "u1"),
        ("topic_id", "<u8"),
        ("seq", "<u8"),
        ("ts", "<u8"),
        ("node_len", "<u2"),
        ("tag_len", "<u2"),
        ("data_len", "<u4"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES
# Taken out as bytes and then looked at: numpy copies an item with fields field by field.
_HEADER_BYTES, _U32, _U64 = np.dtype(f"V{HEADER_BYTES}"), np.dtype("<u4"), np.dtype("<u8")


class FrameTable:
    """Frames that stand in `data` at `starts`, each with its length; those that are no record of the topic
    with the seq that is expected are marked in `bad`, and their columns mean nothing."""

    def __init__(self, data: bytes, starts: Numbers, lengths: Numbers, topic_id: int, seqs: Numbers) -> None:
        self._data = data
        self._buffer = pa.py_buffer(data)
        whole = (lengths >= FRAME_LEN_MIN + LEN_BYTES) & (starts + lengths <= len(data))
        if not whole.all():
            # What does not even have the room of a frame is looked at as if it were the one before it.
            starts, lengths = np.where(whole, starts, 0), np.where(whole, lengths, 0)
        self.starts, self.ends = starts, starts + lengths
        self.bad = ~whole
        if whole.all():
            self._look(topic_id, seqs)

    def _look(self, topic_id: int, seqs: Numbers) -> None:
        heads = self._fixed(_HEADER_BYTES, self.starts).view(_HEADER)
        node_len, tag_len = heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64)
        data_len = heads["data_len"].astype(np.int64)
        lengths = self.ends - self.starts
        self.node_at = self.starts + HEADER_BYTES
        self.tag_at = self.node_at + node_len
        self.data_at = self.tag_at + tag_len
        self.data_end = self.ends - CHECKSUM_BYTES
        self.meta_at = self.meta_end = self.data_end
        self.has_meta = (heads["flags"] & FLAG_META) != 0
        bad = (
            (heads["frame_len"] != lengths - LEN_BYTES)
            | (heads["type"] != FrameType.APPEND)
            | ((heads["flags"] & ~np.uint8(FLAGS_KNOWN)) != 0)
            | (heads["topic_id"] != np.uint64(topic_id))
            | (heads["seq"] != seqs.astype(np.uint64))
            | (FRAME_LEN_MIN + node_len + tag_len + data_len != lengths - LEN_BYTES)
        )
        found = np.fromiter(map(xxh3, self._bodies()), np.uint64, len(lengths))
        bad |= found != self._fixed(_U64, self.data_end)
        if not bad.any() and self.has_meta.any():
            self._split_meta(bad)
        self.bad = bad

    def _bodies(self) -> Iterable[bytes | memoryview]:
        """What the checksum of each frame is of."""
        starts, ends = self.starts + LEN_BYTES, self.data_end
        if len(self._data) < SMALL_BYTES * len(starts):
            copies: npt.NDArray[np.object_] = self.cut(starts, ends).to_numpy(zero_copy_only=False)
            return copies
        view = memoryview(self._data)
        return (view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    def _split_meta(self, bad: npt.NDArray[np.bool_]) -> None:
        """The payload of those with meta is data, meta, and the length of meta."""
        has, end = self.has_meta, self.data_end
        meta_len = np.zeros(len(end), dtype=np.int64)
        meta_len[has] = self._fixed(_U32, (end - U32.size)[has])
        self.meta_end = np.where(has, end - U32.size, end)
        self.meta_at = self.meta_end - meta_len
        bad |= self.meta_at < self.data_at
        self.data_end = np.where(has, self.meta_at, end)

    def _fixed(self, kind: np.dtype[Any], starts: Numbers) -> npt.NDArray[Any]:
        """What stands at each place: the bytes as an array of such items, one from each byte on."""
        count = max(0, len(self._data) - kind.itemsize + 1)
        items: npt.NDArray[Any] = np.ndarray((count,), kind, self._data, strides=(1,))
        return items[starts]

    def cut(
        self, starts: Numbers, ends: Numbers, is_null: npt.NDArray[np.bool_] | None = None
    ) -> pa.BinaryArray:
        """The bytes between the places, one element each."""
        count = len(starts)
        bounds = np.empty(2 * count + 1, dtype=np.int32)
        bounds[0:-1:2], bounds[1::2] = starts, ends
        bounds[-1] = bounds[-2] if count else 0
        parts = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(bounds.tobytes()), self._buffer]
        )
        return parts.take(pa.array(np.arange(0, 2 * count, 2), mask=is_null))
