"""Columns of Arrow from many frames at once, without an object per record.

The offsets of the parts of all frames are computed as arrays of numbers. A column is a view of the file's own
bytes as an array that alternates between a part and the bytes up to the next part; Arrow takes every second
element. Only the checksum is computed frame by frame.

Requirement: the frames of a topic are in seq order in the file and do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicsd.log.frame import (
    CHECKSUM_BYTES,
    FLAG_BYTES,
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

# Below this average frame size, copying a frame costs less than a view of it.
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
# Extracted as bytes and reinterpreted: numpy copies structured items field by field.
_HEADER_BYTES, _U32, _U64 = np.dtype(f"V{HEADER_BYTES}"), np.dtype("<u4"), np.dtype("<u8")


class FrameTable:
    """Frames in `data` at `starts` with `lengths`.

    A frame that is not a record of the topic with the expected seq is marked in `bad`, and its columns are
    undefined.
    """

    def __init__(self, data: bytes, starts: Numbers, lengths: Numbers, topic_id: int, seqs: Numbers) -> None:
        self._data = data
        self._buffer = pa.py_buffer(data)
        whole = (lengths >= FRAME_LEN_MIN + LEN_BYTES) & (starts + lengths <= len(data))
        if not whole.all():
            # Entries that cannot hold a frame are set to zero, and only marked in `bad`.
            starts, lengths = np.where(whole, starts, 0), np.where(whole, lengths, 0)
        self.starts, self.ends = starts, starts + lengths
        self.bad = ~whole
        if whole.all():
            self._parse(topic_id, seqs)

    def _parse(self, topic_id: int, seqs: Numbers) -> None:
        heads = self._fixed(_HEADER_BYTES, self.starts).view(_HEADER)
        node_len, tag_len = heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64)
        data_len = heads["data_len"].astype(np.int64)
        lengths = self.ends - self.starts
        self.node_at = self.starts + HEADER_BYTES
        self.tag_at = self.node_at + node_len
        self.data_at = self.tag_at + tag_len
        self._heads = heads
        self.data_end = self.ends - CHECKSUM_BYTES
        self.meta_at = self.meta_end = self.data_end
        self.has_meta = (heads["flags"] & FLAG_META) != 0
        self.is_bytes = (heads["flags"] & FLAG_BYTES) != 0
        bad = (
            (heads["frame_len"] != lengths - LEN_BYTES)
            | (heads["type"] != FrameType.APPEND)
            | ((heads["flags"] & ~np.uint8(FLAGS_KNOWN)) != 0)
            | (heads["topic_id"] != np.uint64(topic_id))
            | (heads["seq"] != seqs.astype(np.uint64))
            | (FRAME_LEN_MIN + node_len + tag_len + data_len != lengths - LEN_BYTES)
        )
        checksums = np.fromiter(map(xxh3, self._bodies()), np.uint64, len(lengths))
        bad |= checksums != self._fixed(_U64, self.data_end)
        if not bad.any() and self.has_meta.any():
            self._split_meta(bad)
        self.bad = bad

    @property
    def times_ms(self) -> Numbers:
        times_ms: Numbers = self._heads["ts"].astype(np.int64)
        return times_ms

    def _bodies(self) -> Iterable[bytes | memoryview]:
        """Return the bytes that each frame's checksum covers, one element each."""
        starts, ends = self.starts + LEN_BYTES, self.data_end
        if len(self._data) < SMALL_BYTES * len(starts):
            copies: npt.NDArray[np.object_] = self.cut(starts, ends).to_numpy(zero_copy_only=False)
            return copies
        view = memoryview(self._data)
        return (view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    def _split_meta(self, bad: npt.NDArray[np.bool_]) -> None:
        """Split payloads that have meta: data, meta, and the length of meta."""
        has, end = self.has_meta, self.data_end
        meta_len = np.zeros(len(end), dtype=np.int64)
        meta_len[has] = self._fixed(_U32, (end - U32.size)[has])
        self.meta_end = np.where(has, end - U32.size, end)
        self.meta_at = self.meta_end - meta_len
        bad |= self.meta_at < self.data_at
        self.data_end = np.where(has, self.meta_at, end)

    def _fixed(self, kind: np.dtype[Any], starts: Numbers) -> npt.NDArray[Any]:
        """Return the item of type `kind` at each offset, through a view with a stride of one byte."""
        count = max(0, len(self._data) - kind.itemsize + 1)
        items: npt.NDArray[Any] = np.ndarray((count,), kind, self._data, strides=(1,))
        return items[starts]

    def cut(
        self, starts: Numbers, ends: Numbers, is_null: npt.NDArray[np.bool_] | None = None
    ) -> pa.BinaryArray:
        """Return the bytes between each pair of offsets, one element each."""
        count = len(starts)
        bounds = np.empty(2 * count + 1, dtype=np.int32)
        bounds[0:-1:2], bounds[1::2] = starts, ends
        bounds[-1] = bounds[-2] if count else 0
        parts = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(bounds.tobytes()), self._buffer]
        )
        return parts.take(pa.array(np.arange(0, 2 * count, 2), mask=is_null))
