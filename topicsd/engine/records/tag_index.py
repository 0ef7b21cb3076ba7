"""The tag index of a tail run: the seqs of each tag, so that a delete by tag costs only the matching records.

The index is divided into ranges of `STRETCH_RECORDS` seqs, so that no step of the loop handles more than one:
`prune` drops whole ranges, and a search by prefix searches the sorted tags of each range, which stay sorted
once the range is full. A thread may run `find` when the work is too large for one step of the loop.

Most tags are on one record or on many: one seq is stored as a plain integer, several as an array. The stored
number is the offset in the range, because all ranges share those integer objects; a separate integer would be
as large as a tag. Seqs of dead records stay in the index until `prune`, or a little longer; callers check
that the seqs they get are live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

STRETCH_RECORDS = 2048
TAKEN_AT_ONCE = 1000
_PLACES = tuple(range(STRETCH_RECORDS))
# A first seq that puts every seq outside the range.
_NOWHERE = -STRETCH_RECORDS


class _Stretch:
    """The tags of one range of seqs, with the offsets of their records."""

    __slots__ = ("_sorted", "first_seq", "new_count", "places")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.places: dict[bytes, int | array[int]] = {}
        self.new_count = 0
        """The number of tags ever added, including removed ones."""
        self._sorted: tuple[int, list[bytes]] = (0, [])
        """The sorted tags, and `new_count` before the sort: the loop may add a tag while a thread sorts."""

    def sort(self) -> list[bytes]:
        count, keys = self._sorted
        if count != self.new_count:
            count = self.new_count
            keys = sorted(self.places)
            self._sorted = count, keys
        return keys

    def keys_from(self, prefix: bytes) -> list[bytes]:
        keys = self.sort()
        at = upto = bisect_left(keys, prefix)
        while upto < len(keys) and keys[upto].startswith(prefix):
            upto += 1
        return keys[at:upto]

    def find(self, tag: bytes, below: int) -> list[int]:
        places = self.places.get(tag)
        if places is None:
            return []
        # One atomic copy, since the loop may remove offsets while a thread searches.
        here = (places,) if isinstance(places, int) else places[:]
        first_seq = self.first_seq
        return [first_seq + place for place in here if first_seq + place < below]

    def drop(self, tag: bytes, below: int) -> None:
        places = self.places.get(tag)
        if isinstance(places, int):
            places = array("H", (places,))
        if places is not None:
            del places[: bisect_left(places, below - self.first_seq)]
            if not places:
                del self.places[tag]

    def count(self, tag: bytes) -> int:
        places = self.places.get(tag)
        return 0 if places is None else 1 if isinstance(places, int) else len(places)

    def take(self, tag: bytes, below: int) -> list[int]:
        places = self.places.get(tag)
        # A removed tag stays in the sorted list until the next sort.
        if places is None:
            return []
        first_seq = self.first_seq
        if isinstance(places, int):
            if first_seq + places >= below:
                return []
            del self.places[tag]
            return [first_seq + places]
        at = bisect_left(places, below - first_seq)
        taken = [first_seq + place for place in places[:at]]
        if at == len(places):
            del self.places[tag]
        else:
            del places[:at]
        return taken


class TagIndex:
    """The seqs of each tag of one tail run."""

    __slots__ = ("_first", "_stretch", "_stretches", "is_unknown")

    def __init__(self) -> None:
        self.is_unknown = False
        """True after a start, while the tags of earlier records are not loaded."""
        self._stretches: dict[int, _Stretch] = {}
        # The range of the last added seq, and its first seq.
        self._stretch = _Stretch(_NOWHERE)
        self._first = _NOWHERE

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
        place = seq - self._first
        if not 0 <= place < STRETCH_RECORDS:
            place = self._turn_to(seq)
        stretch = self._stretch
        places = stretch.places.get(tag)
        if places is None:
            stretch.places[tag] = _PLACES[place]
            stretch.new_count += 1
        elif isinstance(places, int):
            if place > places:
                stretch.places[tag] = array("H", (places, place))
        elif place > places[-1]:
            places.append(place)

    def _turn_to(self, seq: int) -> int:
        number, place = divmod(seq, STRETCH_RECORDS)
        self._first = seq - place
        stretch = self._stretches.get(number)
        if stretch is None:
            stretch = self._stretches[number] = _Stretch(self._first)
        self._stretch = stretch
        return place

    def seqs_by_tag(self) -> dict[bytes, list[int]]:
        """Return the whole index as a dict."""
        found: dict[bytes, list[int]] = {}
        for _, stretch in sorted(self._stretches.items()):
            first_seq = stretch.first_seq
            for tag, places in stretch.places.items():
                each = (places,) if isinstance(places, int) else places
                found.setdefault(tag, []).extend([first_seq + place for place in each])
        return found

    def is_much(self, tag: bytes, is_prefix: bool) -> bool:
        """Return whether to `take` these may be too much for one step of the loop."""
        stretches = self._stretches.values()
        if is_prefix:
            return len(stretches) > 1
        return sum([stretch.count(tag) for stretch in stretches]) > TAKEN_AT_ONCE

    def find(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Return what `take` would return, but leave it in the index; may run on a thread."""
        found: list[int] = []
        for stretch in list(self._stretches.values()):
            for key in stretch.keys_from(tag) if is_prefix else (tag,):
                found += stretch.find(key, below)
        return found

    def drop(self, tag: bytes, below: int) -> None:
        """Remove the seqs below `below` of a tag."""
        for stretch in self._stretches.values():
            stretch.drop(tag, below)

    def take(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Remove and return the seqs below `below` with the tag, or with a tag of this prefix."""
        found: list[int] = []
        for stretch in self._stretches.values():
            for key in stretch.keys_from(tag) if is_prefix else (tag,):
                found += stretch.take(key, below)
        return found

    def prune(self, below: int) -> list[object]:
        """Remove and return the ranges below `below`.

        To free one range costs as much as 100 writes, so the caller frees a few at a time.
        """
        numbers: list[int] = []
        for number in self._stretches:
            if (number + 1) * STRETCH_RECORDS > below:
                break
            numbers.append(number)
        pruned: list[object] = [self._stretches.pop(number) for number in numbers]
        if self._first != _NOWHERE and self._first + STRETCH_RECORDS <= below:
            self._stretch, self._first = _Stretch(_NOWHERE), _NOWHERE
        return pruned

    def __len__(self) -> int:
        """Return the number of tags; a tag counts once for each range."""
        return sum(len(stretch.places) for stretch in self._stretches.values())
