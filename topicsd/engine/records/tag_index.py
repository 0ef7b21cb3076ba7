"""The tag index of a tail run: the seqs of each tag, so that a delete by tag costs only the matching records.

The index is divided into ranges of `RANGE_RECORDS` seqs, so that no step of the loop handles more than one:
`prune` drops whole ranges, and a search by prefix searches the sorted tags of each range, which stay sorted
once the range is full. A thread may run `find` when the work is too large for one step of the loop.

A reader with a filter searches one range at a time (`select`).

Most tags are on one record or on many: one seq is stored as a plain integer, several as an array. The stored
number is the offset in the range, because all ranges share those integer objects; a separate integer would be
as large as a tag. Seqs of dead records stay in the index until `prune`, or a little longer; callers check
that the seqs they get are live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from topicsd.engine.records.tag_search import TagSearch

RANGE_RECORDS = 2048
TAKEN_AT_ONCE = 1000
_OFFSETS = tuple(range(RANGE_RECORDS))
# A first seq that puts every seq outside the range.
_NOWHERE = -RANGE_RECORDS


class _SeqRange:
    """The tags of one range of seqs, with the offsets of their records."""

    __slots__ = ("_sorted", "first_seq", "new_count", "offsets")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.offsets: dict[bytes, int | array[int]] = {}
        self.new_count = 0
        """The number of tags ever added, including removed ones."""
        self._sorted: tuple[int, list[bytes]] = (0, [])
        """The sorted tags, and `new_count` before the sort: the loop may add a tag while a thread sorts."""

    def sort(self) -> list[bytes]:
        count, keys = self._sorted
        if count != self.new_count:
            count = self.new_count
            keys = sorted(self.offsets)
            self._sorted = count, keys
        return keys

    def keys_from(self, prefix: bytes) -> list[bytes]:
        keys = self.sort()
        start = end = bisect_left(keys, prefix)
        while end < len(keys) and keys[end].startswith(prefix):
            end += 1
        return keys[start:end]

    def find(self, tag: bytes, below: int) -> list[int]:
        offsets = self.offsets.get(tag)
        if offsets is None:
            return []
        # One atomic copy, since the loop may remove offsets while a thread searches.
        stored = (offsets,) if isinstance(offsets, int) else offsets[:]
        first_seq = self.first_seq
        return [first_seq + offset for offset in stored if first_seq + offset < below]

    def selected_tags(self, search: TagSearch) -> tuple[Sequence[bytes], int]:
        """Return the tags that a search selects, and how many tags were looked at."""
        if search.is_exact:
            return search.tags, len(search.tags)
        matches = dict.fromkeys(search.tags)
        count = len(search.tags)
        for prefix in search.prefixes:
            tags = self.keys_from(prefix)
            matches.update(dict.fromkeys(tags))
            count += len(tags)
        for start, fullmatch in search.globs:
            tags = self.keys_from(start)
            matches.update((tag, None) for tag in tags if fullmatch(tag))
            count += len(tags)
        return [*matches], count

    def between(self, tag: bytes, first: int, last: int) -> list[int]:
        """Return the seqs of a tag from `first` to `last`."""
        offsets = self.offsets.get(tag)
        if offsets is None:
            return []
        base = self.first_seq
        if isinstance(offsets, int):
            return [base + offsets] if first <= base + offsets <= last else []
        low, high = bisect_left(offsets, first - base), bisect_right(offsets, last - base)
        return [base + offset for offset in offsets[low:high]]

    def drop(self, tag: bytes, below: int) -> None:
        offsets = self.offsets.get(tag)
        if isinstance(offsets, int):
            offsets = array("H", (offsets,))
        if offsets is not None:
            del offsets[: bisect_left(offsets, below - self.first_seq)]
            if not offsets:
                del self.offsets[tag]

    def count(self, tag: bytes) -> int:
        offsets = self.offsets.get(tag)
        return 0 if offsets is None else 1 if isinstance(offsets, int) else len(offsets)

    def take(self, tag: bytes, below: int) -> list[int]:
        offsets = self.offsets.get(tag)
        # A removed tag stays in the sorted list until the next sort.
        if offsets is None:
            return []
        first_seq = self.first_seq
        if isinstance(offsets, int):
            if first_seq + offsets >= below:
                return []
            del self.offsets[tag]
            return [first_seq + offsets]
        at = bisect_left(offsets, below - first_seq)
        taken = [first_seq + offset for offset in offsets[:at]]
        if at == len(offsets):
            del self.offsets[tag]
        else:
            del offsets[:at]
        return taken


class TagIndex:
    """The seqs of each tag of one tail run."""

    __slots__ = ("_first_seq", "_last_range", "_ranges", "is_unknown")

    def __init__(self, is_unknown: bool = False) -> None:
        self.is_unknown = is_unknown
        """True after a start, while the tags of earlier records are not loaded."""
        self._ranges: dict[int, _SeqRange] = {}
        # The range of the last added seq, and its first seq.
        self._last_range = _SeqRange(_NOWHERE)
        self._first_seq = _NOWHERE

    @classmethod
    def of(cls, pairs: dict[bytes, list[int]]) -> TagIndex:
        """Return an index of all these tags."""
        index = cls()
        for tag, seqs in pairs.items():
            for seq in seqs:
                index.add(tag, seq)
        return index

    def add(self, tag: bytes, seq: int) -> None:
        """Add a tag of a record. Seqs must be in rising order; a repeated seq changes nothing."""
        offset = seq - self._first_seq
        if not 0 <= offset < RANGE_RECORDS:
            offset = self._select_range(seq)
        seq_range = self._last_range
        offsets = seq_range.offsets.get(tag)
        if offsets is None:
            seq_range.offsets[tag] = _OFFSETS[offset]
            seq_range.new_count += 1
        elif isinstance(offsets, int):
            if offset > offsets:
                seq_range.offsets[tag] = array("H", (offsets, offset))
        elif offset > offsets[-1]:
            offsets.append(offset)

    def _select_range(self, seq: int) -> int:
        number, offset = divmod(seq, RANGE_RECORDS)
        self._first_seq = seq - offset
        seq_range = self._ranges.get(number)
        if seq_range is None:
            seq_range = self._ranges[number] = _SeqRange(self._first_seq)
        self._last_range = seq_range
        return offset

    def seqs_by_tag(self) -> dict[bytes, list[int]]:
        """Return the whole index as a dict."""
        by_tag: dict[bytes, list[int]] = {}
        for _, seq_range in sorted(self._ranges.items()):
            first_seq = seq_range.first_seq
            for tag, offsets in seq_range.offsets.items():
                each = (offsets,) if isinstance(offsets, int) else offsets
                by_tag.setdefault(tag, []).extend([first_seq + offset for offset in each])
        return by_tag

    def is_much(self, tag: bytes, is_prefix: bool) -> bool:
        """Return whether to `take` these may be too much for one step of the loop."""
        ranges = self._ranges.values()
        if is_prefix:
            return len(ranges) > 1
        return sum([seq_range.count(tag) for seq_range in ranges]) > TAKEN_AT_ONCE

    def find(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Return what `take` would return, but leave it in the index; may run on a thread."""
        seqs: list[int] = []
        for seq_range in list(self._ranges.values()):
            for key in seq_range.keys_from(tag) if is_prefix else (tag,):
                seqs += seq_range.find(key, below)
        return seqs

    def select(self, search: TagSearch, first: int, last: int) -> tuple[list[int], int]:
        """Return the selected seqs from `first` to `last`, ascending, and how many tags were looked at.

        `first` and `last` are in one range.
        """
        seq_range = self._ranges.get(first // RANGE_RECORDS)
        if seq_range is None:
            return [], 1
        tags, count = seq_range.selected_tags(search)
        if len(tags) == 1:
            (tag,) = tags
            return seq_range.between(tag, first, last), count
        return sorted([seq for tag in tags for seq in seq_range.between(tag, first, last)]), count + len(tags)

    def drop(self, tag: bytes, below: int) -> None:
        """Remove the seqs below `below` of a tag."""
        for seq_range in self._ranges.values():
            seq_range.drop(tag, below)

    def take(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Remove and return the seqs below `below` with the tag, or with a tag of this prefix."""
        seqs: list[int] = []
        for seq_range in self._ranges.values():
            for key in seq_range.keys_from(tag) if is_prefix else (tag,):
                seqs += seq_range.take(key, below)
        return seqs

    def prune(self, below: int) -> list[object]:
        """Remove and return the ranges below `below`.

        To free one range costs as much as 100 writes, so the caller frees a few at a time.
        """
        numbers: list[int] = []
        for number in self._ranges:
            if (number + 1) * RANGE_RECORDS > below:
                break
            numbers.append(number)
        pruned: list[object] = [self._ranges.pop(number) for number in numbers]
        if self._first_seq != _NOWHERE and self._first_seq + RANGE_RECORDS <= below:
            self._last_range, self._first_seq = _SeqRange(_NOWHERE), _NOWHERE
        return pruned

    def __len__(self) -> int:
        """Return the number of tags; a tag counts once for each range."""
        return sum(len(seq_range.offsets) for seq_range in self._ranges.values())
