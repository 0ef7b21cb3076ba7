"""What the planning of a query asks of a topic, whatever holds it: files, a server or a shared catalog."""

from __future__ import annotations

from typing import Protocol

from topicsd.engine.records.lost_range import LostRange


class QueryTopic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shard(self) -> int: ...

    @property
    def epoch(self) -> int:
        """A number that a topic created later under the same name does not have."""
        ...

    @property
    def earliest(self) -> int: ...

    @property
    def durable(self) -> int:
        """The last readable seq."""
        ...

    @property
    def head(self) -> int:
        """The last seq that was assigned."""
        ...

    @property
    def end(self) -> int:
        """The seq after the last readable one."""
        ...

    def seq_at(self, ts: int) -> int | None:
        """Return the first seq whose record is not older than `ts`."""
        ...

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Return a first and a last seq between which all records of this time range are."""
        ...

    def lost(self, start: int, end: int) -> LostRange | None:
        """Return the first lost range from `start` up to `end`; deleted records are not lost."""
        ...

    def bytes_between(self, start: int, end: int) -> int: ...

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        """Return the end of the records that fit in about `bytes_max` bytes; at least one record."""
        ...
