"""The lookup of a dead-letter topic at the brokers, and what may change before its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from shared.contract.errors import Refusal, not_ready
from shared.http.head import NO_FIELDS
from tests.harness.shard.one_shard import OneShard
from topicsd.service.call import Call
from topicsd.service.handlers import Handlers

BODY = b'{"type":"queue","dead_letter":"dead"}'
REQUESTS = [("put_topic", BODY), ("append", b'{"records":[{"data":1}],"config":%b}' % BODY)]


class StatusCall(Call, kw_only=True, eq=False):
    statuses: list[int]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.statuses.append(status)


class PendingBrokers:
    """Brokers that have no topic, and have not answered yet whether they have a dead-letter topic."""

    def __init__(self) -> None:
        self.names_in_question: dict[str, object] = {}
        self.replies: list[tuple[str, Callable[[bool | Refusal], object]]] = []

    def start(self, operation: str, call: Call, start_here: Callable[[], None]) -> None:
        start_here()

    def join(self, operation: str, call: Call, start_here: Callable[[], None]) -> None:
        raise AssertionError("no name is asked about")

    def find_shared(self, name: str, reply: Callable[[bool | Refusal], object]) -> None:
        self.replies.append((name, reply))


class PendingLookup:
    """Handlers that wait to hear whether a topic is shared."""

    def __init__(self, operation: str, body: bytes) -> None:
        self.stage = OneShard()
        self.brokers = PendingBrokers()
        self.redirects: list[str] = []
        self.is_elsewhere = False
        self.handlers = Handlers(
            self.stage.shard,
            redirect=lambda operation, call: self.redirects.append(operation),
            is_elsewhere=lambda name: self.is_elsewhere,
            brokers=self.brokers,
        )
        self.call = self.begin(operation, body)

    def begin(self, operation: str, body: bytes) -> StatusCall:
        fields = msgspec.structs.replace(NO_FIELDS, content_type="application/json")
        call = StatusCall("q", "", fields, body, 0.0, statuses=[])
        self.handlers.start(operation, call)
        self.stage.settle()
        return call

    def answer(self, is_shared: bool | Refusal) -> list[int]:
        [(name, reply)] = self.brokers.replies
        assert name == "dead"
        assert not self.call.statuses
        assert "q" not in self.stage.shard.state.topics
        reply(is_shared)
        self.stage.settle()
        return self.call.statuses


@pytest.mark.parametrize(("operation", "body"), REQUESTS)
def test_the_answer_decides(operation: str, body: bytes) -> None:
    assert PendingLookup(operation, body).answer(True) == [409]
    assert PendingLookup(operation, body).answer(not_ready("the broker is away")) == [503]
    lookup = PendingLookup(operation, body)
    assert lookup.answer(False) == [201]
    assert lookup.stage.shard.state.topics["q"].config.dead_letter == "dead"


@pytest.mark.parametrize(("operation", "body"), REQUESTS)
def test_a_topic_that_another_shard_got_meanwhile_is_made_there(operation: str, body: bytes) -> None:
    lookup = PendingLookup(operation, body)
    lookup.is_elsewhere = True
    assert lookup.answer(False) == []
    assert lookup.redirects == [operation]
    assert "q" not in lookup.stage.shard.state.topics


def test_a_topic_that_is_here_needs_no_lookup() -> None:
    lookup = PendingLookup("put_topic", b'{"type":"queue"}')
    assert lookup.call.statuses == [201]
    lookup.stage.append("dead", 1)
    lookup.stage.settle()
    assert lookup.begin("put_topic", BODY).statuses == [200]
    assert lookup.begin("put_topic", b'{"dead_letter":null}').statuses == [200]
    assert not lookup.brokers.replies
