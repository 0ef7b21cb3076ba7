"""The request handling of one worker, wired as the worker does, without its sockets."""

from __future__ import annotations

from shared.contract.api_keys import parse_keys
from shared.ipc.connection_mailbox import ConnectionSender
from shared.ipc.link import LinkKind, LinkPool, LinkRequest
from tests.harness.one_shard import OneShard
from topicsd.service.dispatch import Dispatch
from topicsd.service.handlers import Handlers
from topicsd.service.routes import ROUTE_REQUESTS
from topicsd.service.shards.caps import Caps
from topicsd.service.shards.peers import Peers
from topicsd.service.watch.streams import STREAM_REQUESTS


def start_dispatch(
    one: OneShard,
    links: LinkPool,
    number: int,
    shard_count: int,
    *,
    peers: Peers | None = None,
    keys: str = "",
    sender: ConnectionSender | None = None,
) -> Dispatch:
    state = one.shard.state
    caps = Caps(state) if peers is None else Caps(state, number, peers, links)
    handlers = Handlers(one.shard, one.settings, one.loop, caps)
    return Dispatch(handlers, parse_keys(keys), links, number, shard_count, peers, sender)


def answer_link(dispatch: Dispatch, kind: LinkKind, payload: bytes, request: LinkRequest) -> None:
    """Answer a request of another process."""
    if kind == LinkKind.REQUEST:
        dispatch.answer_link(payload, request)
    elif kind in STREAM_REQUESTS:
        dispatch.streams.answer_link(kind, payload, request)
    else:
        assert kind in ROUTE_REQUESTS
        dispatch.route_rules.answer_link(kind, payload, request)
