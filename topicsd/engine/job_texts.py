"""The records of jobs, as JSON, for whoever got them: from the pages that readers share.

What stands in a sealed segment and in no page is read on a thread. A record that is gone by then, or cannot
be read, has no text: its lease runs out like that of a worker who died, and another claim tries again.

Must not know: who has which job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from topicsd.engine.fetch import fetch
from topicsd.engine.fill_page import Fetched, PageSource, Unfetched
from topicsd.engine.page import PAGE_RECORDS, VARIANTS, Page
from topicsd.engine.requests import RenderedRecord
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.segment.entry import COLD

_ALL = VARIANTS[True, True]


decode_text = msgspec.json.Decoder(RenderedRecord).decode


class Texts(NamedTuple):
    by_seq: dict[int, bytes]
    """A whole JSON object each."""
    damaged: dict[int, str]


def read_texts(shard: ShardState, topic: Topic, seqs: Sequence[int], told: Callable[[Texts], None]) -> None:
    """The records that are there; at once, or when the disk has answered."""
    _read(shard, topic, seqs, told, [])


def _read(
    shard: ShardState,
    topic: Topic,
    seqs: Sequence[int],
    told: Callable[[Texts], None],
    fetched: list[Fetched],
) -> None:
    found = _look(shard, topic, seqs, fetched)
    if isinstance(found, Texts):
        told(found)
        return
    run, first, wanted = found
    thread = shard.threads.cold if run.entry.tier == COLD else shard.threads.read

    def go_on(one: Fetched | OSError) -> None:
        assert isinstance(one, Fetched), one
        _read(shard, topic, seqs, told, [*fetched, one])

    thread.submit(partial(fetch, shard.segments, run, first, wanted), go_on)


def _look(
    shard: ShardState, topic: Topic, seqs: Sequence[int], fetched: Sequence[Fetched]
) -> Texts | Unfetched:
    source = PageSource(shard, topic, _ALL, fetched)
    texts: dict[int, bytes] = {}
    damaged: dict[int, str] = {}
    page = Page(0)
    last = max(seqs)
    for seq in seqs:
        if not page.first_seq <= seq < page.next_seq:
            run = topic.run_of(seq)
            if run is None or seq < max(run.first_seq, topic.earliest_seq) or run.is_dead(seq):
                continue
            upto = max(seq, min(last, run.next_seq - 1, seq | (PAGE_RECORDS - 1)))
            found = source.page(run, seq, upto, shard.settings.max_response_bytes)
            if isinstance(found, Unfetched):
                return found
            page = found
        if page.damage is not None and seq in page.damage:
            damaged[seq] = page.damage[seq]
            continue
        start, end = page.start_of(seq), page.ends[seq - page.first_seq]
        if start < end:
            texts[seq] = page.text[start : end - 1]  # Without its comma.
    return Texts(texts, damaged)
