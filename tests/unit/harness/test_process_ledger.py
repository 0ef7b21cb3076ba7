"""The ledger of a running server detects broken promises; each test breaks one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.harness.books.process_ledger import ProcessLedger, Sent
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.http_server import FAST, HttpServer

pytestmark = pytest.mark.slow


class Writer:
    def __init__(self, port: int) -> None:
        self.port = port
        self.book = ProcessLedger({"d": "disk"})
        self.book.make_topics(port)
        self._rng = Random(1)

    def sent(self) -> Sent:
        return self.book.send("d", self._rng)

    def sent_with_key(self) -> Sent:
        while (sent := self.sent()).request.key is None:
            self.book.answered(sent, refusal(503, "not_ready"))
        return sent

    def ask(self, sent: Sent) -> Answer:
        with RawClient(self.port) as client:
            client.send(sent.wire)
            return client.read_answer("POST")

    def write(self) -> Sent:
        sent = self.sent()
        assert self.book.answered(sent, self.ask(sent))
        return sent

    def delete(self, before_seq: int) -> None:
        with RawClient(self.port) as client:
            body = b'{"before_seq":%d}' % before_seq
            assert client.ask("POST", "/v0/topics/d/delete", body).status == 200

    def check(self) -> None:
        self.book.crashed()
        self.book.check(self.port)


def refusal(status: int, code: str, **fields: str) -> Answer:
    headers = {"content-type": "application/json", "retry-after": "1", **fields}
    return Answer(status, "", headers, b'{"error":{"code":"%b","message":""}}\n' % code.encode())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with HttpServer(tmp_path / "data") as server:
        yield Writer(server.ports[FAST])


def test_a_correct_run_is_accepted(writer: Writer) -> None:
    for _ in range(20):
        writer.write()
    writer.check()
    writer.check()


def test_a_missing_acked_record_is_detected(writer: Writer) -> None:
    writer.write()
    writer.write()
    writer.delete(2)
    with pytest.raises(AssertionError):
        writer.check()


def test_a_refused_record_that_appears_is_detected(writer: Writer) -> None:
    sent = writer.sent()
    writer.ask(sent)
    writer.book.answered(sent, refusal(503, "not_ready"))
    with pytest.raises(AssertionError, match="returned at seq"):
        writer.check()


def test_a_request_in_doubt_appears_at_most_once(writer: Writer) -> None:
    there, lost = writer.sent(), writer.sent()
    writer.ask(there)
    writer.book.answered(there, refusal(504, "in_doubt"))
    writer.book.lost(lost)
    writer.check()
    twice = writer.sent()
    writer.book.lost(twice)
    writer.ask(twice._replace(wire=twice.wire.replace(b"idempotency_key", b"idempotency_xxx")))
    writer.ask(twice._replace(wire=twice.wire.replace(b"idempotency_key", b"idempotency_yyy")))
    with pytest.raises(AssertionError):
        writer.check()


def test_a_retry_must_receive_the_outcome_of_the_first_request(writer: Writer) -> None:
    first = writer.sent_with_key()
    writer.ask(first)
    writer.book.lost(first)
    doubtful = writer.book.crashed()
    writer.book.check(writer.port)
    (again,) = writer.book.settled(doubtful)
    assert again.was_there
    writer.book.send_again(again)
    answer = writer.ask(again)
    assert writer.book.answered(again, answer)
    assert not writer.book.complaints
    writer.book.answered(again._replace(was_there=False), answer)
    assert writer.book.complaints


def test_records_seen_by_a_reader_must_stay(writer: Writer) -> None:
    sent = writer.sent()
    writer.ask(sent)
    with RawClient(writer.port) as client:
        assert writer.book.read_on(client, "d", 0) > 0
        client.ask("DELETE", "/v0/topics/d")
    writer.book.lost(sent)
    writer.book.crashed()
    writer.book.ledger.forget("d")
    with RawClient(writer.port) as client:
        assert client.ask("PUT", "/v0/topics/d", b"{}").status == 201
    with pytest.raises(AssertionError, match="a reader saw"):
        writer.book.check(writer.port)


def test_an_unexpected_answer_is_detected(writer: Writer) -> None:
    writer.book.answered(writer.sent(), refusal(500, "internal"))
    with pytest.raises(AssertionError, match="unexpected answer"):
        writer.check()
