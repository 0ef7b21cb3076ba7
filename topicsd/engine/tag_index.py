"""Which records of the tail carry a tag, so that a delete by tag costs what it matches.

Most tags stand on one record or on many: one seq is kept as a plain integer, more as an array. Seqs that
are gone meanwhile stay until `prune`; whoever asks checks that what it gets is alive.

Must not know: records, or what a delete is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left


class TagIndex:
    __slots__ = ("_seqs", "_sorted", "is_unknown")

    def __init__(self) -> None:
        self.is_unknown = False
        """The tags of records that came before a start are not in here."""
        self._seqs: dict[bytes, int | array[int]] = {}
        self._sorted: list[bytes] | None = None

    def add(self, tag: bytes, seq: int) -> None:
        """Note a tag of a record; seqs come in rising order, and one that came before changes nothing."""
        seqs = self._seqs.get(tag)
        if seqs is None:
            self._seqs[tag] = seq
            self._sorted = None
        elif isinstance(seqs, int):
            if seq > seqs:
                self._seqs[tag] = array("Q", (seqs, seq))
        elif seq > seqs[-1]:
            seqs.append(seq)

    def fill(self, pairs: dict[bytes, list[int]]) -> None:
        """These are all tags, also those that are known."""
        self._seqs = {tag: seqs[0] if len(seqs) == 1 else array("Q", seqs) for tag, seqs in pairs.items()}
        self._sorted = None
        self.is_unknown = False

    def seqs_by_tag(self) -> dict[bytes, int | array[int]]:
        """All of it, to be read only."""
        return dict(self._seqs)

    def take(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """The seqs under `below` that carry the tag, or one that begins with it; they leave the index."""
        if not is_prefix:
            return self._take_one(tag, below)
        keys = self._sorted
        if keys is None:
            keys = self._sorted = sorted(self._seqs)
        found: list[int] = []
        at = bisect_left(keys, tag)
        while at < len(keys) and keys[at].startswith(tag):
            # A key that was taken before stands in the sorted list until the next sort.
            if keys[at] in self._seqs:
                found += self._take_one(keys[at], below)
            at += 1
        return found

    def prune(self, below: int) -> None:
        """Forget the seqs under `below`."""
        for tag in list(self._seqs):
            self._take_one(tag, below)

    def __len__(self) -> int:
        return len(self._seqs)

    def _take_one(self, tag: bytes, below: int) -> list[int]:
        seqs = self._seqs.get(tag)
        if seqs is None:
            return []
        if isinstance(seqs, int):
            if seqs >= below:
                return []
            del self._seqs[tag]
            return [seqs]
        at = bisect_left(seqs, below)
        taken = seqs[:at].tolist()
        if at == len(seqs):
            del self._seqs[tag]
        else:
            del seqs[:at]
        return taken
