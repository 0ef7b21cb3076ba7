"""The part of a read that runs on a thread: frames of a sealed segment.

One fetch is bounded in bytes, and in records because they are rendered on the loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate

from topicsd.engine.read.fill_page import Fetched
from topicsd.engine.read.page import Frames
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.segment.entry import SegmentDamage
from topicsd.segment.reader import SegmentReader
from topicsd.store.object_store import StoreRefused, StoreUnavailable

FETCH_BYTES_MIN = 64 << 10
FETCH_BYTES_MAX = 1 << 20
# Rendering these 16 pages takes well under a millisecond of the loop.
FETCH_RECORDS_MAX = 1024


def fetch(reader: SegmentReader, run: SealedRun, first: int, bytes_wanted: int) -> Fetched:
    """Read frames of a segment from `first` on, as many as suit one disk read; runs on a thread."""
    name, entry = run.name, run.entry
    last = first
    try:
        index = reader.index(name, entry)
        budget = min(max(bytes_wanted, FETCH_BYTES_MIN), FETCH_BYTES_MAX)
        at = first - index.first_seq
        end = bisect_right(index.offsets, index.offsets[at] + budget, at) - 1
        last = min(index.first_seq + end, first + FETCH_RECORDS_MAX - 1, run.next_seq - 1)
        try:
            data, _ = reader.frames(name, entry, index, first, last)
        except SegmentDamage as damage:
            if damage.first_seq <= first:
                damaged_last = max(first, min(damage.last_seq, run.next_seq - 1))
                return Fetched(run, first, damaged_last, None, damage.what)
            # Return the good records before the damage first.
            last = damage.first_seq - 1
            data, _ = reader.frames(name, entry, index, first, last)
    except SegmentDamage as damage:
        return Fetched(run, first, max(first, damage.last_seq), None, damage.what)
    except (StoreUnavailable, StoreRefused) as error:
        return Fetched(run, first, last, None, str(error), is_away=True)
    except OSError as error:
        return Fetched(run, first, last, None, f"it cannot be read: {error.strerror}")
    lengths = index.lengths[at : last + 1 - index.first_seq]
    # Each frame begins at the end of the previous one.
    starts = array("I", accumulate(lengths, initial=0))
    starts.pop()
    return Fetched(run, first, last, Frames(first, data, starts, lengths))
