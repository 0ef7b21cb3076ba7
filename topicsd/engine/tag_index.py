"""Which records of the tail carry a tag, so that a delete by tag costs what it matches.

By stretches of seqs (`STRETCH_RECORDS`), so that no step is of more than one of them: forgetting the front
is dropping whole stretches, and a tag by its beginning is looked for in the sorted tags of each, which stay
sorted once the stretch is over. A thread may `sort` them in front of a `take` by prefix.

Most tags stand on one record or on many: one seq is kept as a plain integer, more as an array. Seqs that
are gone meanwhile stay until `prune`, or a little longer; whoever asks checks that what it gets is alive.

Must not know: records, or what a delete is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

STRETCH_RECORDS = 2048
PRUNED_AT_ONCE = 4


class _Stretch:
    __slots__ = ("_sorted", "new_count", "seqs")

    def __init__(self) -> None:
        self.seqs: dict[bytes, int | array[int]] = {}
        self.new_count = 0
        """How many tags have come, also those that have left."""
        self._sorted: tuple[int, list[bytes]] = (0, [])
        """The tags, and `new_count` before they were sorted: one may come while a thread does that."""

    @property
    def is_sorted(self) -> bool:
        return self._sorted[0] == self.new_count

    def sort(self) -> list[bytes]:
        count, keys = self._sorted
        if count != self.new_count:
            count = self.new_count
            keys = sorted(self.seqs)
            self._sorted = count, keys
        return keys

    def keys_from(self, prefix: bytes) -> list[bytes]:
        keys = self.sort()
        at = upto = bisect_left(keys, prefix)
        while upto < len(keys) and keys[upto].startswith(prefix):
            upto += 1
        return keys[at:upto]

    def take(self, tag: bytes, below: int) -> list[int]:
        seqs = self.seqs.get(tag)
        # A tag that was taken before stands in the sorted list until the next sort.
        if seqs is None:
            return []
        if isinstance(seqs, int):
            if seqs >= below:
                return []
            del self.seqs[tag]
            return [seqs]
        at = bisect_left(seqs, below)
        taken = seqs[:at].tolist()
        if at == len(seqs):
            del self.seqs[tag]
        else:
            del seqs[:at]
        return taken


class TagIndex:
    __slots__ = ("_first", "_last", "_stretch", "_stretches", "is_unknown")

    def __init__(self) -> None:
        self.is_unknown = False
        """The tags of records that came before a start are not in here."""
        self._stretches: dict[int, _Stretch] = {}
        # The one that the last seq went to, and which seqs belong there.
        self._stretch = _Stretch()
        self._first, self._last = 0, -1

    @classmethod
    def of(cls, pairs: dict[bytes, list[int]]) -> TagIndex:
        """These are all tags."""
        index = cls()
        for tag, seqs in pairs.items():
            for seq in seqs:
                index.add(tag, seq)
        return index

    def add(self, tag: bytes, seq: int) -> None:
        """Note a tag of a record; seqs come in rising order, and one that came before changes nothing."""
        if not self._first <= seq <= self._last:
            self._turn_to(seq)
        stretch = self._stretch
        seqs = stretch.seqs.get(tag)
        if seqs is None:
            stretch.seqs[tag] = seq
            stretch.new_count += 1
        elif isinstance(seqs, int):
            if seq > seqs:
                stretch.seqs[tag] = array("Q", (seqs, seq))
        elif seq > seqs[-1]:
            seqs.append(seq)

    def _turn_to(self, seq: int) -> None:
        number = seq // STRETCH_RECORDS
        self._first = number * STRETCH_RECORDS
        self._last = self._first + STRETCH_RECORDS - 1
        self._stretch = self._stretches.setdefault(number, _Stretch())

    def seqs_by_tag(self) -> dict[bytes, list[int]]:
        """All of it."""
        found: dict[bytes, list[int]] = {}
        for _, stretch in sorted(self._stretches.items()):
            for tag, seqs in stretch.seqs.items():
                found.setdefault(tag, []).extend([seqs] if isinstance(seqs, int) else seqs)
        return found

    def sort(self) -> None:
        """On a thread: so that the next `take` by prefix finds all but the last stretch sorted."""
        for stretch in list(self._stretches.values()):
            stretch.sort()

    @property
    def unsorted_count(self) -> int:
        """How many stretches a `take` by prefix would have to sort."""
        return sum(not stretch.is_sorted for stretch in self._stretches.values())

    def take(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """The seqs under `below` that carry the tag, or one that begins with it; they leave the index."""
        found: list[int] = []
        for stretch in self._stretches.values():
            for key in stretch.keys_from(tag) if is_prefix else (tag,):
                found += stretch.take(key, below)
        return found

    def prune(self, below: int) -> None:
        """Forget stretches under `below`: a few of them, as to free one costs as much as a hundred writes."""
        for _ in range(PRUNED_AT_ONCE):
            number = next(iter(self._stretches), None)
            if number is None or (number + 1) * STRETCH_RECORDS > below:
                return
            if self._stretches.pop(number) is self._stretch:
                self._first, self._last = 0, -1

    def __len__(self) -> int:
        """Tags, those of each stretch by itself."""
        return sum(len(stretch.seqs) for stretch in self._stretches.values())
