"""The records of claimed jobs as JSON, taken from the pages that readers share.

Records in a sealed segment without a page are read on a thread, once for all claims that wait for that
segment, since they usually want adjacent records. For adjacent jobs the read covers more, and its pages are
kept. A record that was removed meanwhile, or is unreadable, is left out. The lease of a damaged one expires
like that of a crashed worker, and another claim retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topicsd.engine.pending import call_reply
from topicsd.engine.read.fetch import fetch
from topicsd.engine.read.fill_page import Fetched, PageSource, Unfetched, keep_fetched
from topicsd.engine.read.page import PAGE_RECORDS, VARIANTS, Page
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import RenderedRecord
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic

_ALL = VARIANTS[True, True]
# Jobs further apart on average do not predict which records are read next.
SPREAD_MAX: Final = 4


decode_job_record = msgspec.json.Decoder(RenderedRecord).decode


class JobRecords(NamedTuple):
    """The records read for some jobs, and the damage met, by seq."""

    by_seq: dict[int, bytes]
    """The record as a whole JSON object."""
    damaged: dict[int, str]
    """Why a record cannot be read."""
    away: dict[int, str]
    """Those of `damaged` that are in good order, in an object store that did not answer."""


def read_job_records(
    shard: ShardState, topic: Topic, seqs: Sequence[int], on_records: Callable[[JobRecords], None]
) -> None:
    """Read the records that exist; call `on_records` at once or when the disk read is done."""
    _read(shard, topic, seqs, on_records, [])


def _read(
    shard: ShardState,
    topic: Topic,
    seqs: Sequence[int],
    on_records: Callable[[JobRecords], None],
    fetched: list[Fetched],
) -> None:
    result = _read_pages(shard, topic, seqs, fetched)
    if isinstance(result, JobRecords):
        on_records(result)
        return
    run, first, bytes_wanted = result

    def resume(one: Fetched) -> None:
        is_of_use = one.first_seq <= first <= one.last_seq
        _read(shard, topic, seqs, on_records, [*fetched, one] if is_of_use else fetched)

    waiting = shard.job_reads.setdefault(run, [])
    waiting.append(resume)
    if len(waiting) == 1:
        is_dense = len(seqs) > 1 and max(seqs) - min(seqs) < SPREAD_MAX * len(seqs)
        bytes_wanted = bytes_wanted if is_dense else PAGE_RECORDS * run.mean_bytes
        on_fetched = partial(_on_fetched, shard, topic, run, is_dense)
        shard.read_on_thread(run, partial(fetch, shard.segments, run, first, bytes_wanted), on_fetched)


def _on_fetched(
    shard: ShardState, topic: Topic, run: SealedRun, is_dense: bool, one: Fetched | OSError
) -> None:
    assert isinstance(one, Fetched), one
    if is_dense:
        keep_fetched(shard, topic, _ALL, one)
    for resume in shard.job_reads.pop(run):
        call_reply(resume, one)


def _read_pages(
    shard: ShardState, topic: Topic, seqs: Sequence[int], fetched: Sequence[Fetched]
) -> JobRecords | Unfetched:
    source = PageSource(shard, topic, _ALL, fetched)
    records: dict[int, bytes] = {}
    damaged: dict[int, str] = {}
    page = Page(0)
    last = max(seqs)
    for seq in seqs:
        if not page.first_seq <= seq < page.next_seq:
            run = topic.run_of(seq)
            if run is None or seq < max(run.first_seq, topic.earliest_seq) or run.is_dead(seq):
                continue
            last_wanted = max(seq, min(last, run.next_seq - 1, seq | (PAGE_RECORDS - 1)))
            result = source.page(run, seq, last_wanted, shard.settings.max_response_bytes)
            if isinstance(result, Unfetched):
                return result
            page = result
        if page.damage is not None and seq in page.damage:
            damaged[seq] = page.damage[seq]
            continue
        start, end = page.start_of(seq), page.ends[seq - page.first_seq]
        if start < end:
            records[seq] = page.text[start : end - 1]  # Without the comma.
    away = [one for one in fetched if one.is_away]
    unanswered = {
        seq: what
        for seq, what in damaged.items()
        if any(one.first_seq <= seq <= one.last_seq for one in away)
    }
    return JobRecords(records, damaged, unanswered)
