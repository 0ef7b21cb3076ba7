"""The listing of a shard's frames, which passes on each frame as it is read.

Only the names of topics and the leases of jobs are kept in memory. The output may be cut off at any place
(`| head`). With a topic selected, only the frames of that topic are parsed.
"""

from __future__ import annotations

from collections.abc import Callable

from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.log.control_frame import Adopt, TopicCreate, decode_control
from topicsd.log.file_header import FILE_HEADER_BYTES, parse_file_header
from topicsd.log.files import LogPlace
from topicsd.log.frame import HEADER, LEN_BYTES, FrameDamage, FrameType, LogFrame, parse_frame
from topicsd.log.reader import WalBatch, WalBatchReader
from topicsd.log.walk import BatchRefused
from topicsd.log.writer import Identity
from topicsd.offline.report.frame_rows import FrameRow, frame_row, service_row
from topicsd.offline.report.job_events import JobEvents
from topicsd.offline.shard_log import ShardLog

_NAMES_TOPIC = (FrameType.TOPIC_CREATE, FrameType.ADOPT)


class FrameListing:
    """A listing that passes every row to `show`; `count` is the number of rows so far."""

    def __init__(
        self,
        shard: int,
        log: ShardLog,
        topic_id: int | None,
        show: Callable[[FrameRow], None],
        names: dict[int, str],
        snapshot: Snapshot | None,
    ) -> None:
        """Begin with `names`, those of the snapshot's topics; the listing adds names it finds."""
        self.count = 0
        self._shard = shard
        self._log = log
        self._topic_id = topic_id
        self._show = show
        self._names = names
        self._file = ""
        self._snapshot = snapshot
        self._events = JobEvents()

    def run(self, identity: Identity) -> None:
        """List the log files kept from before the snapshot, then the log as a start reads it."""
        log = self._log
        if log.known is not None:
            self._list_past(log, log.known.start)
        if self._snapshot is not None:
            self._events.start_from(self._snapshot)
        log.walk(identity, self._batch)

    def _list_past(self, log: ShardLog, end: LogPlace) -> None:
        """List each file from its own beginning to its first damage: no start reads these files."""
        files = [*log.past, *log.files[:1]]
        for file, following in zip(files, [*files[1:], None], strict=True):
            if file.header is None:
                continue
            reader = WalBatchReader(log.fs, file.fd, file.header)
            limit = end.ordinal if following is None else min(end.ordinal, following.first_ordinal)
            while reader.ordinal < limit and (batch := reader.next()) is not None:
                self._batch(batch, 0)

    def _batch(self, batch: WalBatch, position: int) -> None:
        file = self._log.name_of(batch)
        if file != self._file:
            self._file = file
            self._header(file)
        at, ordinal = batch.start, batch.first_ordinal
        to_offset = batch.offset - batch.start
        try:
            while at < batch.end:
                frame_len, _, _, frame_topic = HEADER.unpack_from(batch.buffer, at)[:4]
                if self._topic_id is None or frame_topic == self._topic_id:
                    frame = parse_frame(batch.buffer, at, batch.end)
                    self._frame(file, to_offset + at, ordinal, frame)
                at += LEN_BYTES + frame_len
                ordinal += 1
            self._batch_end(file, to_offset + at, batch)
        except FrameDamage as error:
            raise BatchRefused(f"the frame at offset {to_offset + at}: {error.what}") from error

    def _frame(self, file: str, offset: int, ordinal: int, frame: LogFrame) -> None:
        if frame.type in _NAMES_TOPIC:
            control = decode_control(frame)
            assert isinstance(control, TopicCreate | Adopt)
            self._names[frame.topic_id] = control.name
        self._out(
            frame_row(
                self._shard, ordinal, file, offset, frame, self._names.get(frame.topic_id), self._events
            )
        )

    def _batch_end(self, file: str, offset: int, batch: WalBatch) -> None:
        if self._topic_id is not None:
            return
        frame = parse_frame(batch.buffer, batch.end, len(batch.buffer))
        closing = batch.closing
        says = {
            "frames": batch.frame_count,
            "bytes": closing.length,
            "synced": closing.synced,
            "chain": f"{closing.chain:016x}",
        }
        self._out(service_row(self._shard, file, offset, frame, says, closing.ordinal))

    def _header(self, file: str) -> None:
        if self._topic_id is not None:
            return
        buffer = self._log.fs.pread(self._log.file_named(file).fd, FILE_HEADER_BYTES, 0)
        header = parse_file_header(buffer)
        says = {
            "first_ordinal": header.first_ordinal,
            "file_bytes": header.file_bytes,
            "chain_seed": f"{header.chain_seed:016x}",
            "epoch": header.epoch.hex(),
            "instance": header.instance.hex(),
            "shard": header.shard,
        }
        self._out(service_row(self._shard, file, 0, parse_frame(buffer, 0, len(buffer)), says))

    def _out(self, row: FrameRow) -> None:
        self.count += 1
        self._show(row)
