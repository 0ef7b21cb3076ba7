"""`topicsd compactor --once`: visit topics one after the other, and print what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from shared.runtime.retries import Retries
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import CompactionReport, Compactor
from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE, SharedCatalog
from topicsd.cli.compactor.shared_places import SharedPlaces
from topicsd.offline.table import plural, size

T = TypeVar("T")

_NOT_DONE: Final = {
    "nothing": "nothing to merge",
    "busy": "busy: another process has claimed it",
    "no topic": "no such shared topic",
    "refused": "refused: its extents have changed, try again",
    "claim lost": "claim lost: it took too long, try again",
}


class TopicDone(msgspec.Struct, frozen=True):
    """What one run did for one topic."""

    topic: str
    outcome: str
    """Of the last visit."""
    objects: int
    extents: int
    bytes: int
    removed_records: int
    obstacle: str = ""
    """What stops the compaction of the topic."""


def run_steps(steps: BlockingSteps[T]) -> T:
    """Run steps to their end on this thread."""
    result: Any = None
    while True:
        try:
            call = steps.throw(result) if isinstance(result, OSError) else steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            result = call()
        except OSError as error:
            result = error


def compact_once(
    places: SharedPlaces,
    name: str,
    limits: CompactorLimits,
    retries: Callable[[], Retries],
    topics: Sequence[str],
) -> Iterator[TopicDone]:
    """Visit each topic until there is nothing to merge; all topics when none is given."""
    compactor = Compactor(name, places.store, places.catalog, retries, limits)
    for topic in topics or _all_topics(places.catalog):
        yield _visit(compactor, topic)


def _visit(compactor: Compactor, topic: str) -> TopicDone:
    objects = extents = byte_count = removed = 0
    while True:
        report: CompactionReport = run_steps(compactor.compact(topic))
        removed += report.removed_records
        if report.outcome != "merged":
            outcome = "merged" if objects and report.outcome == "nothing" else report.outcome
            return TopicDone(topic, outcome, objects, extents, byte_count, removed, report.obstacle)
        objects += 1
        extents += report.extents
        byte_count += report.byte_count


def _all_topics(catalog: SharedCatalog) -> Iterator[str]:
    after = ""
    while page := catalog.list("", after, TOPICS_AT_ONCE):
        yield from (topic.name for topic in page)
        after = page[-1].name


def done_text(done: TopicDone) -> str:
    """Return one line.

    >>> done_text(TopicDone("a", "merged", 1, 12, 3 << 20, 0))
    'a: merged 12 slices into 1 object, 3 MiB'
    >>> done_text(TopicDone("a", "nothing", 0, 0, 0, 7))
    'a: nothing to merge; retention removed 7 records'
    >>> done_text(TopicDone("a", "nothing", 0, 0, 0, 0, "seqs 1..4: object k is missing"))
    'a: nothing to merge; stopped by seqs 1..4: object k is missing'
    """
    text = _NOT_DONE.get(done.outcome, "")
    if done.objects:
        merged = f"merged {plural(done.extents, 'slice')} into {plural(done.objects, 'object')}"
        text = f"{merged}, {size(done.bytes)}" + (f"; {text}" if text else "")
    if done.removed_records:
        text += f"; retention removed {plural(done.removed_records, 'record')}"
    if done.obstacle:
        text += f"; stopped by {done.obstacle}"
    return f"{done.topic}: {text}"
