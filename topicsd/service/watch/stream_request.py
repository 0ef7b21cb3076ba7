"""The query of a topic stream: which topics, from where, which records, and in which form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, get_args
from urllib.parse import parse_qsl

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import NOT_ACCEPTABLE, Refusal, excluded, invalid
from shared.contract.names import refuse_topic_name
from shared.contract.query import query_boolean, query_number, query_text
from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TagFilter, TopicSelection
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from shared.text.message import quoted
from shared.text.units import duration_ms, instant_ms, number_in
from topicsd.service.call import Call
from topicsd.service.input.bodies import Consistency, refuse_node, refuse_nul_in
from topicsd.service.input.tag_match import parse_match_query
from topicsd.service.watch.accept import EVENT_STREAM, LINES_OF_JSON, accept_weight
from topicsd.service.watch.body import NODES_MAX, heartbeat_ms_of
from topicsd.service.watch.options import BATCH_BYTES_DEFAULT, Position, StreamOptions
from topicsd.service.watch.selection import refuse_uncovered_topics, topic_selection
from topicsd.stream.tail.stream_form import EVENTS, LINES, LINES_WITH_TOPICS, StreamForm
from topicsd.stream.tail.topic_stream import TopicStreamRequest

HEARTBEAT_MS_DEFAULT: Final = 15_000
WAIT: Final = "wait"
REFUSE: Final = "refuse"


class PlacedRequest(NamedTuple):
    """A checked request, and where to begin in the topics that exist."""

    request: TopicStreamRequest
    position: Position


def decode_stream(
    call: Call, topics: str, key: ApiKey | None, settings: Settings, clock: Clock, *, is_one: bool
) -> PlacedRequest | Refusal:
    """Decode and check the request for `topics`; `is_one` for a path that names the only one."""
    selection = (
        _one_topic(topics) if is_one else topic_selection(topics.split(","), settings.max_watch_topics)
    )
    if isinstance(selection, Refusal):
        return selection
    if key is not None and key.prefixes:
        refusal = refuse_uncovered_topics(selection, key)
        if refusal is not None:
            return refusal
        selection = msgspec.structs.replace(selection, within=key.prefixes)
    fields = dict(parse_qsl(call.query, keep_blank_values=True))
    form = _form(call.fields.accept, has_topics=not is_one)
    position = _position(call.query, clock)
    options = _reader_options(call.query, fields, settings)
    for part in (form, position, options):
        if isinstance(part, Refusal):
            return part
    assert isinstance(position, Position)
    assert isinstance(options, ReaderOptions)
    heartbeat_ms = heartbeat_ms_of(number_in(fields.get("heartbeat_ms", str(HEARTBEAT_MS_DEFAULT))))
    if isinstance(heartbeat_ms, Refusal):
        return heartbeat_ms
    count_max = query_number(call.query, "limit")
    if isinstance(count_max, Refusal):
        return count_max
    if count_max is not None:
        if not count_max:
            return invalid("limit", "must be at least 1: the number of records after which the stream ends")
        options = msgspec.structs.replace(options, limit=min(options.limit, count_max))
    missing = fields.get("missing", WAIT)
    if missing not in (WAIT, REFUSE):
        return invalid("missing", f"must be {WAIT} or {REFUSE}, got {quoted(missing)}")
    key_id = "" if key is None else key.id
    assert not isinstance(form, Refusal)
    request = TopicStreamRequest(selection, options, form, heartbeat_ms, missing == WAIT, count_max, key_id)
    return PlacedRequest(request, position)


def _one_topic(name: str) -> TopicSelection | Refusal:
    return refuse_topic_name(name) or TopicSelection(TagFilter(frozenset([name])))


def _form(accept: str, *, has_topics: bool) -> StreamForm | Refusal:
    events, lines = accept_weight(accept, EVENT_STREAM), accept_weight(accept, LINES_OF_JSON)
    if lines > events:
        return LINES_WITH_TOPICS if has_topics else LINES
    if events > 0:
        return EVENTS
    return Refusal(NOT_ACCEPTABLE, "accept: must allow text/event-stream or application/x-ndjson")


def _position(query: str, clock: Clock) -> Position | Refusal:
    tail = query_boolean(query, "tail", False)
    numbers = [query_number(query, name) for name in ("after_seq", "from_seq", "epoch", "last")]
    since = query_text(query, "since")
    from_ts = None if since is None else _since(since, clock)
    for part in (tail, *numbers, from_ts):
        if isinstance(part, Refusal):
            return part
    after_seq, from_seq, epoch, last = numbers
    given = {
        "after_seq": after_seq,
        "from_seq": from_seq,
        "since": from_ts,
        "last": last,
        "tail": tail or None,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1 and names != ["after_seq", "from_seq"]:
        return excluded(names[1], names[0])
    if epoch is not None and after_seq is None and from_seq is None:
        return invalid("epoch", "must be sent with after_seq")
    position = Position(from_seq, after_seq, bool(tail), epoch, from_ts, last)  # type: ignore[arg-type]
    return position.resolve("", clock) or position


def _since(text: str, clock: Clock) -> int | Refusal:
    """Return the milliseconds of a time; a duration is that long ago."""
    now_ms = clock.now_ms()
    if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text.upper():
        duration = duration_ms("since", text)
        time_ms = duration if isinstance(duration, Refusal) else now_ms - duration
    else:
        time_ms = instant_ms("since", number_in(text), now_ms)
    if isinstance(time_ms, Refusal) or time_ms >= 0:
        return time_ms
    return invalid("since", "must be 1970 or later")


def _reader_options(query: str, fields: Mapping[str, str], settings: Settings) -> ReaderOptions | Refusal:
    includes = [query_boolean(query, *one) for one in _INCLUDES]
    nodes = _nodes(fields.get("node"), settings)
    match = parse_match_query("match", fields["match"]) if "match" in fields else None
    for part in (*includes, nodes, match):
        if isinstance(part, Refusal):
            return part
    consistency = fields.get("consistency", "eventual")
    if consistency not in get_args(Consistency):
        return invalid("consistency", f"must be one of {', '.join(get_args(Consistency))}")
    options = StreamOptions(
        max_batch_bytes=number_in(fields.get("max_batch_bytes", str(BATCH_BYTES_DEFAULT))),
        consistency=consistency,  # type: ignore[arg-type]
    )
    options.node = nodes or None  # type: ignore[assignment]
    options.include_tags, options.include_meta, options.include_data = includes  # type: ignore[assignment]
    refusal = options.resolve()
    return refusal or msgspec.structs.replace(options.reader_options(settings.max_limit), match=match)


_INCLUDES: Final = (("include_tags", False), ("include_meta", True), ("include_data", True))


def _nodes(text: str | None, settings: Settings) -> list[str] | Refusal:
    """Return the nodes of a query: one, or a JSON list of them."""
    if text is None:
        return []
    try:
        nodes = _decode_nodes(text) if text.startswith("[") else [text]
    except msgspec.DecodeError:
        return invalid("node", 'must be a node, or a JSON list of them as in ["a","b"]')
    if len(nodes) > NODES_MAX:
        return invalid("node", f"must have at most {NODES_MAX} entries, got {len(nodes)}", NODES_MAX)
    for node in nodes:
        refusal = refuse_node(node, settings.max_node_bytes)
        if refusal is not None:
            return refusal
    return refuse_nul_in("node", nodes) or nodes


_decode_nodes: Final = msgspec.json.Decoder(list[str]).decode
