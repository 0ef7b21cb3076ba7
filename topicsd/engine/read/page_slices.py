"""The slices of pages of one answer, collected in order until a bound is reached."""

from __future__ import annotations

from collections.abc import Sequence

from shared.contract.reader_options import ReaderOptions
from topicsd.engine.read.page import VARIANTS, Page
from topicsd.engine.records.run import Run

# Bounds a read that returns nothing, for example where all records are of the reader's own nodes.
PAGES_MAX = 256


class PageSlices:
    __slots__ = ("count", "cursor", "damaged", "damaged_seq", "limit", "nodes", "parts", "room", "variant")

    def __init__(self, options: ReaderOptions, nodes: frozenset[str], cursor: int) -> None:
        """Begin after `cursor`; records of `nodes` are skipped."""
        self.limit = options.limit
        self.room = options.bytes_max
        self.nodes = nodes
        self.variant = VARIANTS[options.with_tags, options.with_meta]
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
        dead_run = None if run is None or run.dead is None else run
        while seq <= last:
            if dead_run is not None and dead_run.is_dead(seq):
                seq = min(dead_run.next_live(seq), last + 1)
                self.cursor = seq - 1
                continue
            end = min(last, seq + self.limit - self.count - 1)
            if dead_run is not None:
                end = min(end, dead_run.next_dead(seq) - 1)
            if page.damage is not None or (self.nodes and page.nodes is not None):
                stop = self._first_excluded(page, seq, end)
                if stop == seq:
                    if self.damaged_seq:
                        return False
                    self.cursor = seq
                    seq += 1
                    continue
                end = stop - 1
            fit = page.last_within(seq, end, self.room)
            if fit < seq:
                if self.count:
                    return False
                fit = seq  # The first record is taken whatever its size, so that a read makes progress.
            part = page.slice(seq, fit)
            self.parts.append(part)
            self.room -= len(part)
            self.count += fit - seq + 1
            self.cursor = fit
            if fit < end or self.count >= self.limit or self.room <= 0:
                return False
            seq = fit + 1
        return True

    def take_seqs(self, page: Page, seqs: Sequence[int]) -> bool:
        """Take these live records of a page; return False at a bound."""
        at = 0
        while at < len(seqs):
            end = at + 1
            while end < len(seqs) and seqs[end] == seqs[end - 1] + 1:
                end += 1
            if not self.take(page, seqs[at], seqs[end - 1]):
                return False
            at = end
        return True

    def take_texts(self, page: Page, seqs: Sequence[int], texts: Sequence[bytes]) -> bool:
        """Take records that `page` has rendered but does not hold; return False at a bound."""
        if not seqs:
            return True
        size = sum(map(len, texts))
        is_whole = page.damage is None and (page.nodes is None or not self.nodes)
        if is_whole and size < self.room and self.count + len(texts) < self.limit:
            self.parts.append(b"".join(texts))
            self.room -= size
            self.count += len(texts)
            self.cursor = seqs[-1]
            return True
        taken: list[bytes] = []
        try:
            for seq, text in zip(seqs, texts, strict=True):
                if page.damage is not None and seq in page.damage:
                    self.damaged_seq, self.damaged = seq, page.damage
                    self.cursor = seq - 1
                    return False
                if self.nodes and page.nodes is not None and page.nodes.get(seq) in self.nodes:
                    self.cursor = seq
                    continue
                if self.count and len(text) > self.room:
                    return False
                taken.append(text)
                self.room -= len(text)
                self.count += 1
                self.cursor = seq
                if self.count >= self.limit or self.room <= 0:
                    return False
            return True
        finally:
            if taken:
                self.parts.append(b"".join(taken))

    def _first_excluded(self, page: Page, first: int, last: int) -> int:
        """Return the first seq that is damaged or of the reader's own nodes, or `last + 1`."""
        damage, nodes = page.damage or {}, page.nodes or {}
        for seq in range(first, last + 1):
            if seq in damage:
                if seq == first:
                    self.damaged_seq, self.damaged = seq, damage
                return seq
            # The reader does not want the records of its own nodes. A record without a node is never one.
            if self.nodes and nodes.get(seq) in self.nodes:
                return seq
        return last + 1
