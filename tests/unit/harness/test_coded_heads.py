"""Requests to the second port of `HttpServer` take the slow path, each time."""

from __future__ import annotations

from tests.harness.server.http_server import CodedHeads
from tests.harness.stage.one_connection import HOME, OneConnection, append
from topicsd.http.http1.connection import Http1Connection


def test_every_body_is_treated_as_encoded_even_with_a_cached_head() -> None:
    one = OneConnection()
    heads = CodedHeads(one.dispatch)
    connection = Http1Connection(one.dispatch, heads, one)
    connection.connection_made(one.wire)
    for _ in range(2):
        # Two plain writes would be in flight together.
        connection.data_received(append(HOME) * 2)
        assert one.pending_writes == 1
        one.settle()
    assert one.one.state(HOME).head_seq == 4
