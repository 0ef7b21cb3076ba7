"""The result of a power cut: one of all legal outcomes, chosen by a `random.Random`.

Promises: the same disk and the same rng give the same outcome. Each unsynced sector is independently lost
(the media's version), kept (any version since the sync) or torn (two versions, cut somewhere). The size of
the file is any that it had since the sync; sectors without content within the size are zeros, and data cut
off by a kept truncation does not return. `Names.survivors` decides about names.

Independent sectors almost never produce the plain outcomes: everything lost, everything kept, or a disk that
wrote in order until it stopped. A cut therefore first draws a manner for the data and one for the names;
"each" is the independent one and the most frequent.
"""

from __future__ import annotations

from random import Random

from tests.harness.machine.memory_file import SECTOR_BYTES, MemoryFile, put_sector
from tests.harness.machine.memory_names import NameOp

_MANNERS = ("each", "each", "each", "ordered", "all", "none")
_TORN_SHARE = 0.2
_NEWEST_SHARE = 0.6


class Outcome:
    """The random decisions of one cut."""

    def __init__(self, rng: Random, stamp_last: int) -> None:
        self._rng = rng
        self._data_manner = rng.choice(_MANNERS)
        self._name_manner = rng.choice(_MANNERS)
        # A disk that writes in order has done everything before this call, and this call perhaps in part. The
        # last calls matter most, so half of the draws are there.
        self._horizon = rng.randint(max(0, stamp_last - 3) if rng.random() < 0.5 else 0, stamp_last)

    def keeps_name(self, op: NameOp) -> bool:
        if self._name_manner == "each":
            return self._rng.random() < 0.5
        if self._name_manner == "ordered":
            return op.stamp <= self._horizon
        return self._name_manner == "all"

    def survivor(self, file: MemoryFile) -> MemoryFile:
        """Return the file as found after the restart, all of it on the media."""
        size, shrinks = self._kept_size(file)
        image = file.media[:]
        for _, cut_at in shrinks:
            del image[cut_at:]
        share = self._rng.choice((0.1, 0.5, 0.5, 0.9))
        for sector, versions in file.dirty.items():
            sector_bytes = self._kept_sector(image, sector, _clipped(versions, shrinks, sector), share)
            if sector_bytes is not None:
                put_sector(image, sector, sector_bytes)
        del image[size:]
        return MemoryFile(file.inode, image, size)

    def _kept_size(self, file: MemoryFile) -> tuple[int, list[tuple[int, int]]]:
        """Return a size of the file's history, and the truncations applied with it."""
        count = len(file.sizes)
        if self._data_manner == "none":
            count = 0
        elif self._data_manner == "ordered":
            count = sum(1 for stamp, _ in file.sizes if stamp <= self._horizon)
        elif self._data_manner == "each" and count and self._rng.random() < 0.5:
            count = self._rng.randrange(count)
        size = file.sizes[count - 1][1] if count else file.media_size
        return size, file.shrinks(count)

    def _kept_sector(
        self, image: bytearray, sector: int, versions: list[tuple[int, bytes]], share: float
    ) -> bytes | None:
        """Return the final content of the sector; None keeps what the media had."""
        rng = self._rng
        manner = self._data_manner
        if manner == "none":
            return None
        if manner == "all":
            return versions[-1][1]
        if manner == "ordered":
            versions = [version for version in versions if version[0] <= self._horizon]
            if not versions:
                return None
            if versions[-1][0] < self._horizon:
                return versions[-1][1]
        fate = rng.random()
        if fate < _TORN_SHARE:
            return self._torn(image, sector, versions)
        if fate < _TORN_SHARE + (1 - _TORN_SHARE) * (1 - share):
            return None if manner == "each" or len(versions) < 2 else versions[-2][1]
        newest = manner == "ordered" or rng.random() < _NEWEST_SHARE
        return versions[-1][1] if newest else rng.choice(versions)[1]

    def _torn(self, image: bytearray, sector: int, versions: list[tuple[int, bytes]]) -> bytes:
        start = sector * SECTOR_BYTES
        media = (0, bytes(image[start : start + SECTOR_BYTES]))
        new_index = self._rng.randrange(len(versions))
        new = versions[new_index][1].ljust(SECTOR_BYTES, b"\0")
        old = self._rng.choice([media, *versions[:new_index]])[1].ljust(SECTOR_BYTES, b"\0")
        cut = self._rng.randrange(1, SECTOR_BYTES)
        return new[:cut] + old[cut:] if self._rng.random() < 0.7 else old[:cut] + new[cut:]


def _clipped(
    versions: list[tuple[int, bytes]], shrinks: list[tuple[int, int]], sector: int
) -> list[tuple[int, bytes]]:
    """Return the versions as later truncations left them."""
    if not shrinks:
        return versions
    start = sector * SECTOR_BYTES
    clipped = []
    for stamp, content in versions:
        cuts = [max(0, cut_at - start) for cut_stamp, cut_at in shrinks if cut_stamp > stamp]
        clipped.append((stamp, content[: min(cuts)] if cuts else content))
    return clipped
