"""The selection of a route: which records of a source chunk it copies, and which fields.

`data` and `meta` are copied unchanged. If a rule copies all fields of a record and no record of the chunk
has a stamp (`routes/stamp.py`), the copies are the records themselves, which all such routes of the source
share.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

import msgspec

from shared.contract.route_rule import RouteRule
from topicsd.engine.requests import NO_META, CopiedRecord
from topicsd.engine.routes.copies import CopiedFrames
from topicsd.engine.routes.stamp import HOPS_MAX, STAMP_TEXT, Stamp, read_stamp, stamped_meta
from topicsd.stream.chunks import Chunk

_decode: Final = msgspec.json.Decoder(list[CopiedRecord]).decode


class SourceChunk:
    """The records of one chunk, decoded once for all routes that read it."""

    __slots__ = ("_frames", "chunk", "has_stamps", "records")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.records = _decode(b"[%b]" % chunk.records)
        self.has_stamps = STAMP_TEXT in chunk.records
        self._frames: CopiedFrames | None = None
        """The frames of all records, shared by all routes that copy every record unchanged."""

    def copies(self, rule: RouteRule, copied_seqs: Set[int]) -> CopiedFrames:
        selected = selected_records(self, rule, copied_seqs)
        records = copied_records(self, rule, selected)
        if records is not self.records:
            return CopiedFrames(records, records is not selected)
        if self._frames is None:
            self._frames = CopiedFrames(records, is_changed=False)
        return self._frames


def selected_records(source: SourceChunk, rule: RouteRule, copied_seqs: Set[int]) -> list[CopiedRecord]:
    """Return the records to copy in order, each with the seq of its original.

    `copied_seqs` are the seqs of records whose copy in the destination must remain the only one.
    """
    records = source.records
    if rule.tags is not None:
        is_selected = _tag_test(rule.tags)
        records = [record for record in records if is_selected(record.tag or "")]
    if copied_seqs:
        records = [record for record in records if record.seq not in copied_seqs]
    return records


def copied_records(source: SourceChunk, rule: RouteRule, records: list[CopiedRecord]) -> list[CopiedRecord]:
    """Return the records as they are copied; the same list object when no record changes."""
    stamps = rule.stamps
    if stamps or source.has_stamps:
        epoch = source.chunk.epoch
        stamped = (_stamped(record, rule.source, epoch, stamps) for record in records)
        records = [record for record in stamped if record is not None]
    if rule.keeps_node and rule.keeps_tag:
        return records
    return [
        CopiedRecord(
            record.data,
            record.tag if rule.keeps_tag else None,
            record.node if rule.keeps_node else None,
            record.meta,
            record.seq,
            record.data_base64,
        )
        for record in records
    ]


def _stamped(record: CopiedRecord, source: str, epoch: int, stamps: bool) -> CopiedRecord | None:
    """Return the record with its new stamp, or None when it has made `HOPS_MAX` hops."""
    known, meta = read_stamp(bytes(record.meta)) if record.meta is not NO_META else (None, b"")
    if known is None and not stamps:
        return record
    hops = 1 if known is None else known.hops + 1
    if hops > HOPS_MAX:
        return None
    stamped = msgspec.Raw(stamped_meta(meta, Stamp(source, epoch, record.seq, hops)))
    return CopiedRecord(record.data, record.tag, record.node, stamped, record.seq, record.data_base64)


def _tag_test(match: list[str]) -> Callable[[str], bool]:
    _, operator, tag = match
    if operator == "Glob":
        return lambda tag_of_record: tag_of_record.startswith(tag[:-1])
    return lambda tag_of_record: tag_of_record == tag


def original_seqs(chunk: Chunk, source: str, epoch: int) -> list[int]:
    """Return the seqs of the source's records that the records of the chunk are copies of."""
    seqs = []
    if STAMP_TEXT in chunk.records:
        for record in _decode(b"[%b]" % chunk.records):
            stamp, _ = read_stamp(bytes(record.meta))
            if stamp is not None and (stamp.source, stamp.epoch) == (source, epoch):
                seqs.append(stamp.seq)
    return seqs
