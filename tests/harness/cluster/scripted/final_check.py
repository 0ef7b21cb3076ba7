"""What must hold at the end of a scripted run, wherever a program ended.

E1  Nothing is lost or there twice, no seq is used twice, what was deleted stays deleted, cursors and jobs are
    where they were left (J1 to J8 of `histories/book.py`). A repeated write gets the seqs of the first one.
E2  Every object that something names is in the store, with its size: the catalog, a state object that it
    names, the segments of a node, the snapshots of a node.
E3  After a vacuum on each node, each object that is left is named. A vacuum keeps objects of topics that its
    node does not know or own (V4 and V5 of `offline/vacuum.py`): of deleted topics, and of lost nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.harness.cluster.answers import Append, Appended
from tests.harness.cluster.scripted.scripted_run import READER_GRACE_MS, ScriptedRun, ScriptNode
from tests.harness.cluster.scripted.vacuum_process import named_on_disk
from topicsd.catalog.catalog import TopicRow
from topicsd.disk.layout import parse_topic_dir_name
from topicsd.engine.bundle.bundle_format import decode_bundle
from topicsd.engine.bundle.segment_source import suffixes_of
from topicsd.engine.ownership.state_object import state_keys
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.segment.entry import DATA

GRACE_MS: Final = 300_000
"""Longer than a late request takes, and than the clocks differ."""
UPKEEP_MS: Final = 61_000
"""Until each node has looked at objects to delete, and at segments to drop."""


def check_end(run: ScriptedRun) -> None:
    check_named(run)
    run.pass_time((GRACE_MS + READER_GRACE_MS + 2 * UPKEEP_MS) / 1000)
    _write_snapshots(run)
    for node in living(run):
        run.vacuum(node.name, GRACE_MS)
    run.settle()
    check_named(run)
    _check_no_orphans(run)
    run.judge_topics()
    _check_repeats(run)
    assert not run.world.failures, run.world.failures


def living(run: ScriptedRun) -> list[ScriptNode]:
    return [node for node in run.by_name.values() if not node.is_lost]


def _write_snapshots(run: ScriptedRun) -> None:
    """Have a new snapshot on each node: a vacuum deletes nothing that is younger than a grace before it."""
    for node in living(run):
        since_ms = run.world.clock.now_ms() + node.skew_ms
        run.repeat(node.name, node.name, Append([b'"checkpoint"']), Appended)

        def has_snapshot(node: ScriptNode = node, since_ms: int = since_ms) -> bool:
            return (named_on_disk(node).until_ms or 0) >= since_ms

        run.wait(has_snapshot, f"a snapshot of {node.name}")


# -- names and objects ---------------------------------------------------------------------------------------


def keys_of_state(run: ScriptedRun, key: str) -> Iterator[str]:
    for entry in decode_bundle(run.cluster.store.objects[key].data).topic.segments:
        assert entry.object_stem, f"{key}: a segment that is in no object"
        yield entry.object_stem + DATA
        yield from (entry.object_stem + suffix for suffix in suffixes_of(entry))


def keys_of_row(run: ScriptedRun, row: TopicRow) -> Iterator[tuple[str, str]]:
    """Yield what the catalog names, and the state that an adopt would begin with; each with what names it."""
    extents = run.cluster.catalog.extents(row.name)
    for extent in extents:
        for one in extent.objects:
            stored = run.cluster.store.objects.get(one.key)
            assert stored is not None, f"{row.name}: the catalog names {one.key}, which is missing"
            assert len(stored.data) == one.size, (
                f"{row.name}: {one.key} has another size than its extent says"
            )
            yield one.key, f"an extent of {row.name}"
    for key in state_keys(row, extents):
        yield key, f"the state of {row.name}"
        assert key in run.cluster.store.objects, f"{row.name}: its state {key} is missing"
        for named in keys_of_state(run, key):
            yield named, f"the state {key}"


def keys_of_node(node: ScriptNode) -> Iterator[tuple[str, str]]:
    for topic in node.shard.state.topics.values():
        for run in topic.runs:
            if isinstance(run, SealedRun) and run.entry.object_stem:
                yield run.entry.object_stem + DATA, f"a segment of {topic.name} on {node.name}"


def check_named(run: ScriptedRun) -> None:
    """Check that what is named exists (E2)."""
    named = [one for row in run.cluster.catalog.rows() for one in keys_of_row(run, row)]
    for node in living(run):
        named += keys_of_node(node)
    for key, by in named:
        assert key in run.cluster.store.objects, f"{key} is missing, and {by} names it"


def _check_no_orphans(run: ScriptedRun) -> None:
    named = {stem(key) for row in run.cluster.catalog.rows() for key, _ in keys_of_row(run, row)}
    for node in living(run):
        named.update(stem(key) for key, _ in keys_of_node(node))
        named.update(node.shard.state.objects_to_delete)
        named.update(named_on_disk(node).stems)
    # Only a program that ended forgets objects of a deleted topic.
    kept = set(run.dropped) if run.has_ended else set()
    kept.update((row.topic_id, row.incarnation) for row in run.cluster.catalog.rows() if run.is_lost(row))
    orphans = [
        key
        for key in run.cluster.store.objects
        if stem(key) not in named and _incarnation_of(key) not in kept
    ]
    assert not orphans, f"nothing names these after a vacuum: {orphans}"


def _incarnation_of(key: str) -> tuple[int, int] | None:
    return parse_topic_dir_name(key.split("/")[1])


def stem(key: str) -> str:
    return key.rpartition(".")[0]


# -- writes --------------------------------------------------------------------------------------------------


def _check_repeats(run: ScriptedRun) -> None:
    """Check that a repeated write gets the seqs of the first one, unless that may be lost (E1)."""
    for topic, append, first_seq, acked_ns in run.keyed:
        if run.book.may_be_lost(topic, acked_ns):
            continue
        row = run.cluster.catalog.row(topic)
        assert row is not None
        again = run.repeat(row.owner, topic, append, Appended)
        assert again.first_seq == first_seq, f"{topic}: {append} had seq {first_seq}, and its repeat {again}"
