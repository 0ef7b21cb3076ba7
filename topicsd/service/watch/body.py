"""The body of a request for a watch session: its bounds, and the names that its key covers."""

from __future__ import annotations

from typing import Final, Literal

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal, invalid
from shared.contract.json_bounds import may_hold_nul
from shared.contract.names import is_topic_pattern, refuse_topic_name
from shared.ipc.watch_request import WatchRequest
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from shared.text.units import duration_ms
from topicsd.service.input.bodies import refuse_node, refuse_nul_in
from topicsd.service.input.bound_names import refuse_uncovered
from topicsd.service.input.json_body import JsonBody
from topicsd.service.watch.options import Position, StreamOptions
from topicsd.service.watch.selection import refuse_uncovered_topics, topic_selection

HEARTBEAT_MS_MIN: Final = 1000
HEARTBEAT_MS_MAX: Final = 60_000
# Each session keeps its own copy.
NODES_MAX: Final = 256


class WatchBody(StreamOptions, gc=False, kw_only=True):
    topics: dict[str, Position]
    heartbeat_ms: int | str = 15_000
    missing: Literal["refuse", "wait"] = "refuse"


_WATCH: Final = JsonBody(WatchBody, '{"topics":{"orders":{"tail":true}}}')


def decode_watch(
    body: bytes, key: ApiKey | None, is_lenient: bool, settings: Settings, clock: Clock
) -> WatchRequest | Refusal:
    """Decode and check the body; `is_lenient` skips topics that the key does not cover."""
    watch = _WATCH.decode(body)
    if isinstance(watch, Refusal):
        return watch
    nodes = sorted(watch.nodes)
    heartbeat_ms = heartbeat_ms_of(watch.heartbeat_ms)
    refusal = (
        watch.resolve()
        or (heartbeat_ms if isinstance(heartbeat_ms, Refusal) else None)
        or _resolve_topics(watch.topics, settings.max_watch_topics, clock)
        or _refuse_nodes(nodes, settings.max_node_bytes)
        or (refuse_nul_in("node", nodes) if may_hold_nul(body) else None)
    )
    if refusal is not None:
        return refusal
    assert isinstance(heartbeat_ms, int)
    topics = watch.topics
    if key is not None and key.prefixes:
        topics = {name: position for name, position in topics.items() if _covers(key, name)}
        if len(topics) < len(watch.topics) and not (is_lenient and topics):
            name = next(name for name in watch.topics if name not in topics)
            return refuse_uncovered("topics", name)
    return WatchRequest(
        names=list(topics),
        positions=[position.requested for position in topics.values()],
        epochs=[position.epoch for position in topics.values()],
        key_id="" if key is None else key.id,
        options=watch.reader_options(settings.max_limit),
        heartbeat_ms=heartbeat_ms,
        is_lenient=is_lenient,
        clamped=watch.clamped(settings.max_limit),
        is_waiting=watch.missing == "wait",
        within=() if key is None else key.prefixes,
    )


def heartbeat_ms_of(given: int | str) -> int | Refusal:
    heartbeat_ms = duration_ms("heartbeat_ms", given)
    if isinstance(heartbeat_ms, Refusal) or HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        return heartbeat_ms
    rule = f"must be from {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, got {heartbeat_ms}"
    return invalid("heartbeat_ms", rule)


def _resolve_topics(topics: dict[str, Position], count_max: int, clock: Clock) -> Refusal | None:
    if not 1 <= len(topics) <= count_max:
        return invalid("topics", f"must have 1 to {count_max} entries, got {len(topics)}", count_max)
    for name, position in topics.items():
        is_pattern = is_topic_pattern(name)
        refusal = None if is_pattern else refuse_topic_name(name, "topics")
        refusal = refusal or position.resolve(f"topics.{name}.", clock)
        if refusal is None and is_pattern and (position.from_seq or position.epoch is not None):
            field = "after_seq" if position.from_seq else "epoch"
            refusal = invalid(
                f"topics.{name}.{field}", "must not be sent for a pattern: topics have their own seqs"
            )
        if refusal is not None:
            return refusal
    return None


def _covers(key: ApiKey, word: str) -> bool:
    """Return whether the key covers a name, or topics that a pattern may match."""
    if not is_topic_pattern(word):
        return key.allows_name(word)
    selection = topic_selection([word], 1)
    return not isinstance(selection, Refusal) and refuse_uncovered_topics(selection, key) is None


def _refuse_nodes(nodes: list[str], bytes_max: int) -> Refusal | None:
    if len(nodes) > NODES_MAX:
        return invalid("node", f"must have at most {NODES_MAX} entries, got {len(nodes)}", NODES_MAX)
    return next(filter(None, (refuse_node(node, bytes_max) for node in nodes)), None)
