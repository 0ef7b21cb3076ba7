"""Which records of the tail carry a tag, so that a delete by tag costs what it matches.

By stretches of seqs (`STRETCH_RECORDS`), so that no step is of more than one of them: forgetting the front
is dropping whole stretches, and a tag by its beginning is looked for in the sorted tags of each, which stay
sorted once the stretch is over. A thread may `find` what is more than a step of the loop.

Most tags stand on one record or on many: one seq is kept as a plain integer, more as an array. It is the
place in the stretch that is kept, of which all stretches share the objects: an integer of its own is as large
as a tag. Seqs that are gone meanwhile stay until `prune`, or a little longer; whoever asks checks that what
it gets is alive.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

STRETCH_RECORDS = 2048
TAKEN_AT_ONCE = 1000
_PLACES = tuple(range(STRETCH_RECORDS))
# A first seq with which no seq is in the stretch.
_NOWHERE = -STRETCH_RECORDS


class _Stretch:
    __slots__ = ("_sorted", "first_seq", "new_count", "places")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.places: dict[bytes, int | array[int]] = {}
        self.new_count = 0
        """How many tags have come, also those that have left."""
        self._sorted: tuple[int, list[bytes]] = (0, [])
        """The tags, and `new_count` before they were sorted: one may come while a thread does that."""

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
        # In one step, as the loop may be taking some of them out.
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
        # A tag that was taken before stands in the sorted list until the next sort.
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
    __slots__ = ("_first", "_stretch", "_stretches", "is_unknown")

    def __init__(self) -> None:
        self.is_unknown = False
        """The tags of records that came before a start are not in here."""
        self._stretches: dict[int, _Stretch] = {}
        # The one that the last seq went to, and where it begins.
        self._stretch = _Stretch(_NOWHERE)
        self._first = _NOWHERE

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
        """All of it."""
        found: dict[bytes, list[int]] = {}
        for _, stretch in sorted(self._stretches.items()):
            first_seq = stretch.first_seq
            for tag, places in stretch.places.items():
                each = (places,) if isinstance(places, int) else places
                found.setdefault(tag, []).extend([first_seq + place for place in each])
        return found

    def is_much(self, tag: bytes, is_prefix: bool) -> bool:
        """To `take` these may be more than a step of the loop."""
        stretches = self._stretches.values()
        if is_prefix:
            return len(stretches) > 1
        return sum([stretch.count(tag) for stretch in stretches]) > TAKEN_AT_ONCE

    def find(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """On a thread: what `take` would, and it stays in the index."""
        found: list[int] = []
        for stretch in list(self._stretches.values()):
            for key in stretch.keys_from(tag) if is_prefix else (tag,):
                found += stretch.find(key, below)
        return found

    def drop(self, tag: bytes, below: int) -> None:
        """What was found of this tag is gone."""
        for stretch in self._stretches.values():
            stretch.drop(tag, below)

    def take(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """The seqs under `below` that carry the tag, or one that begins with it; they leave the index."""
        found: list[int] = []
        for stretch in self._stretches.values():
            for key in stretch.keys_from(tag) if is_prefix else (tag,):
                found += stretch.take(key, below)
        return found

    def prune(self, below: int) -> list[object]:
        """Return the stretches under `below`, which are in the index no more.

        To free one costs as much as a hundred writes, so the caller frees a few at a time.
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
        """Tags, those of each stretch by itself."""
        return sum(len(stretch.places) for stretch in self._stretches.values())
