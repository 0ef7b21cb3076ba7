"""The slices of pages of one answer, collected in order until a bound is reached."""

from __future__ import annotations

from shared.contract.reader_options import ReaderOptions
from topicsd.engine.read.page import Page, variant_of, without_tag
from topicsd.engine.records.run import Run

# Bounds a read that returns nothing, for example where all records are of the reader's own nodes.
PAGES_MAX = 256


class PageSlices:
    __slots__ = (
        "count",
        "cursor",
        "damaged",
        "damaged_seq",
        "limit",
        "match",
        "nodes",
        "parts",
        "room",
        "variant",
        "with_tags",
    )

    def __init__(self, options: ReaderOptions, nodes: frozenset[str], cursor: int) -> None:
        """Begin after `cursor`; records of `nodes` are skipped, and those that the filter does not select."""
        self.match = options.match
        self.with_tags = options.with_tags
        self.limit = options.limit
        self.room = options.bytes_max
        self.nodes = nodes
        self.variant = variant_of(options)
        self.cursor = cursor
        """The last seq that was examined."""
        self.parts: list[bytes | memoryview] = []
        self.count = 0
        self.damaged_seq = 0
        """The first damaged seq; the answer has the good records before it, and the next read begins here."""
        self.damaged: dict[int, str] = {}

    def take(self, page: Page, first: int, last: int, run: Run | None = None) -> bool:
        """Take the records from `first`, which is live, to `last`; return False at a bound.

        `run` is the run of the records, if some of them may be dead.
        """
        seq = first
        tags = None if self.match is None else page.tags()
        is_cut = tags is not None and not self.with_tags
        dead_run = None if run is None or run.dead is None else run
        while seq <= last:
            if dead_run is not None and dead_run.is_dead(seq):
                seq = min(dead_run.next_live(seq), last + 1)
                self.cursor = seq - 1
                continue
            end = min(last, seq + self.limit - self.count - 1)
            if dead_run is not None:
                end = min(end, dead_run.next_dead(seq) - 1)
            if page.damage is not None or (self.nodes and page.nodes is not None) or tags is not None:
                stop = self._first_excluded(page, seq, end, tags)
                if stop == seq:
                    if self.damaged_seq:
                        return False
                    self.cursor = seq
                    seq += 1
                    continue
                end = seq if is_cut else stop - 1
            fit = page.last_within(seq, end, self.room)
            if fit < seq:
                if self.count:
                    return False
                fit = seq  # The first record is taken whatever its size, so that a read makes progress.
            part = without_tag(page.slice(seq, fit)) if is_cut else page.slice(seq, fit)
            self.parts.append(part)
            self.room -= len(part)
            self.count += fit - seq + 1
            self.cursor = fit
            if fit < end or self.count >= self.limit or self.room <= 0:
                return False
            seq = fit + 1
        return True

    def _first_excluded(self, page: Page, first: int, last: int, tags: dict[int, str] | None) -> int:
        """Return the first seq that is damaged, of the reader's own nodes, or not selected, or `last + 1`."""
        damage, nodes = page.damage or {}, page.nodes or {}
        for seq in range(first, last + 1):
            if seq in damage:
                if seq == first:
                    self.damaged_seq, self.damaged = seq, damage
                return seq
            # The reader does not want the records of its own nodes. A record without a node is never one.
            if self.nodes and nodes.get(seq) in self.nodes:
                return seq
            if tags is not None and self.match is not None and not self.match.selects(tags.get(seq, "")):
                return seq
        return last + 1
