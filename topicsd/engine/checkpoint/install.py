"""The exchange of a topic's runs after a checkpoint: its records are now in segments.

The topic may have changed since the capture: deletes since then are carried over, and evicted records are not
restored.
"""

from __future__ import annotations

from topicsd.engine.checkpoint.capture import Capture
from topicsd.engine.checkpoint.segment_copy import GrowingSegment, live_totals
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import ActiveFile, TailRun
from topicsd.engine.retention.retention import drop_run
from topicsd.engine.topic import Topic
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import SegmentStore


def install(
    reader: SegmentReader, hot: SegmentStore, captured: Capture, segments: list[GrowingSegment]
) -> None:
    """Replace the captured runs by the segments that they were copied to."""
    topic = captured.topic
    topic.complete_to = captured.entry.complete_to
    replaced: list[TailRun] = list(captured.tails)
    active = captured.active
    if active is not None and segments and segments[0].first_seq == active.first_seq:
        replaced.insert(0, active)
    if not replaced:
        return
    runs: list[Run] = []
    # The topic's front may have passed the active segment meanwhile, which continues to grow.
    names = {segment.name for segment in segments}
    topic.dropped = [one for one in topic.dropped if one.name not in names]
    for segment in segments:
        run = _run_of(reader, hot, topic, segment, replaced)
        if run.next_seq <= topic.earliest_seq:
            drop_run(topic, run)
        else:
            runs.append(run)
    kept = [run for run in topic.runs[:-1] if not any(run is old for old in replaced)]
    topic.runs = [*sorted(kept + runs, key=lambda run: run.first_seq), topic.run]


def undo_capture(captured: Capture) -> None:
    """Undo the capture of a failed checkpoint.

    Its files are still to be dropped, and its runs are still to be copied.
    """
    captured.topic.dropped = captured.dropped + captured.topic.dropped
    captured.topic.exported = captured.exported + captured.topic.exported
    for tail in captured.tails:
        tail.is_being_copied = False


def _run_of(
    reader: SegmentReader, hot: SegmentStore, topic: Topic, segment: GrowingSegment, replaced: list[TailRun]
) -> SealedRun | TailRun:
    marks = _marks_now(segment, replaced)
    if segment.is_sealed:
        sealed = SealedRun(reader, segment.name, segment.entry, marks)
        sealed.saved_dead_count = segment.entry.dead_count
        skipped = topic.earliest_seq - segment.first_seq
        # Otherwise all records are live, as in the entry, and need no count.
        if marks is not None or skipped > 0:
            sealed.live_count, sealed.live_bytes = live_totals(segment.lengths, marks, skipped)
        return sealed
    source = ActiveFile(hot, segment.name, segment.entry)
    return TailRun.of_segment(source, segment.offsets, segment.lengths, segment.times_ms, segment.tags, marks)


def _marks_now(segment: GrowingSegment, replaced: list[TailRun]) -> bytearray | None:
    marks: bytearray | None = None
    for old in replaced:
        low, high = max(segment.first_seq, old.first_seq), min(segment.next_seq, old.next_seq)
        if old.dead is not None and low < high:
            part = old.dead[low - old.first_seq : high - old.first_seq]
            if part.count(1):
                marks = bytearray(segment.next_seq - segment.first_seq) if marks is None else marks
                marks[low - segment.first_seq : high - segment.first_seq] = part
    return marks
