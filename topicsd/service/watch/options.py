"""Options that watch sessions and WebSocket subscriptions share: start, content, size."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal, invalid
from shared.contract.reader_options import LIMIT_DEFAULT, ReaderOptions
from shared.contract.seek import Seek, seek_of
from shared.runtime.clock import Clock
from shared.text.units import size_bytes
from topicsd.service.input.bodies import Consistency, ReadFields, refuse_number, resolve_seek
from topicsd.service.input.position import one_position

BATCH_BYTES_DEFAULT: Final = 256 << 10
# 0 differs from a missing value.
BATCH_BYTES_OF_ZERO: Final = 1 << 20
BATCH_BYTES_MAX: Final = 8 << 20


class Position(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A position: after a seq of an epoch, at a time, from the end, or at the next record."""

    from_seq: int | None = None
    after_seq: int | None = None
    tail: bool = False
    epoch: int | None = None
    from_ts: int | str | None = None
    last: int | None = None

    @property
    def requested(self) -> int | Seek | None:
        assert not isinstance(self.from_ts, str), "from_ts is not resolved to a number"
        return None if self.tail else seek_of(self.from_ts, self.last) or self.from_seq or 0

    @property
    def needs_lookup(self) -> bool:
        """Return whether the owner must look up the seq of the position."""
        return self.from_ts is not None or self.last is not None

    @property
    def has_fixed_position(self) -> bool:
        """Return whether the request names a position that needs no lookup."""
        return self.tail or self.from_seq is not None or self.epoch is not None

    def resolve(self, prefix: str, clock: Clock) -> Refusal | None:
        """Resolve the position to numbers and check its bounds; `prefix` precedes field names."""
        seq = one_position(prefix, self.from_seq, self.after_seq)
        if isinstance(seq, Refusal):
            return seq
        self.from_seq = seq
        refusal = refuse_number(f"{prefix}epoch", self.epoch)
        if self.needs_lookup:
            from_ts = resolve_seek(prefix, self.from_ts, self.last, self.has_fixed_position, clock)
            if isinstance(from_ts, Refusal):
                return refusal or from_ts
            self.from_ts = from_ts
        if refusal is None and self.tail and seq is not None:
            field = f"{prefix}tail"
            refusal = invalid(field, "must not be sent with after_seq")
        return refusal


class StreamOptions(ReadFields, gc=False, kw_only=True):
    """Options for all topics of a session or subscription."""

    limit: int = LIMIT_DEFAULT
    max_batch_bytes: int | str = BATCH_BYTES_DEFAULT
    include_data: bool = True
    consistency: Consistency = "eventual"

    def resolve(self) -> Refusal | None:
        """Resolve the size to bytes and check the bounds. Values over a maximum are clamped."""
        size = size_bytes("max_batch_bytes", self.max_batch_bytes)
        if isinstance(size, Refusal):
            return size
        self.max_batch_bytes = size
        refusal = refuse_number("limit", min(self.limit, 0)) or refuse_number("max_batch_bytes", min(size, 0))
        if refusal is None and isinstance(self.tag_filter, Refusal):
            return self.tag_filter
        return refusal

    def reader_options(self, limit_max: int) -> ReaderOptions:
        assert not isinstance(self.max_batch_bytes, str), "max_batch_bytes is not resolved to a number"
        match = self.tag_filter
        assert not isinstance(match, Refusal), "resolve has refused it"
        return ReaderOptions(
            self.nodes,
            min(self.limit or LIMIT_DEFAULT, limit_max),
            min(self.max_batch_bytes or BATCH_BYTES_OF_ZERO, BATCH_BYTES_MAX),
            self.include_tags,
            self.include_meta,
            self.include_data,
            self.consistency == "strong",
            match,
        )

    def clamped(self, limit_max: int) -> dict[str, int]:
        """Return the values used for numbers over their bounds."""
        assert not isinstance(self.max_batch_bytes, str), "max_batch_bytes is not resolved to a number"
        bounds = {
            "limit": (self.limit, limit_max),
            "max_batch_bytes": (self.max_batch_bytes, BATCH_BYTES_MAX),
        }
        return {name: bound for name, (given, bound) in bounds.items() if given > bound}
