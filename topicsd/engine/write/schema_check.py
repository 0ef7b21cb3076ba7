"""The check of new records against the schema of their topic.

Every write by a client is checked, and so are copies by routes and jobs of schedules. Dead letters and
redriven jobs are not: they were accepted once, and must have a place to go.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.contract.errors import SCHEMA_MISMATCH, Refusal
from topicsd.engine.requests import NewRecord
from topicsd.engine.schema.record_schema import Mismatch, RecordSchema
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic


def refuse_mismatch(
    shard: ShardState, topic: Topic, schema: RecordSchema, records: Sequence[NewRecord]
) -> Refusal | None:
    """Refuse the first record that breaks the schema; with the mode `warn` count and log them instead."""
    is_warning = topic.config.schema_mode == "warn"
    if not schema.is_compiled():
        problem = schema.problem
        if problem is None or not is_warning:
            return problem
        shard.mismatches.accept(topic.name, len(records), problem.message, shard.clock.monotonic())
        return None
    count, first = 0, ""
    for index, record in enumerate(records):
        mismatch = schema.mismatch(record)
        if mismatch is None:
            continue
        if not is_warning:
            shard.mismatches.refused += 1
            return _refusal(topic.name, index, mismatch)
        count += 1
        first = first or f"at {mismatch.path or 'the top'}, rule {mismatch.rule}"
    if count:
        shard.mismatches.accept(topic.name, count, first, shard.clock.monotonic())
    return None


def _refusal(name: str, index: int, mismatch: Mismatch) -> Refusal:
    field = f"records[{index}].data"
    place = f" at {mismatch.path}" if mismatch.path else ""
    message = f'{field}: breaks the schema of topic "{name}"{place}: {mismatch.message}'
    detail: dict[str, object] = {
        "field": field,
        "index": index,
        "path": mismatch.path,
        "rule": mismatch.rule,
    }
    return Refusal(SCHEMA_MISMATCH, message, detail)
