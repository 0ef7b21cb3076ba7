"""The ledger of a running server detects broken promises; each test breaks one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.harness.http_server import FAST, HttpServer
from tests.harness.process_ledger import ProcessLedger, Sent
from tests.harness.raw_client import Answer, RawClient

pytestmark = pytest.mark.slow


class Stage:
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
def stage(tmp_path: Path) -> Iterator[Stage]:
    with HttpServer(tmp_path / "data") as server:
        yield Stage(server.ports[FAST])


def test_a_correct_run_is_accepted(stage: Stage) -> None:
    for _ in range(20):
        stage.write()
    stage.check()
    stage.check()


def test_a_missing_acked_record_is_detected(stage: Stage) -> None:
    stage.write()
    stage.write()
    stage.delete(2)
    with pytest.raises(AssertionError):
        stage.check()


def test_a_refused_record_that_appears_is_detected(stage: Stage) -> None:
    sent = stage.sent()
    stage.ask(sent)
    stage.book.answered(sent, refusal(503, "not_ready"))
    with pytest.raises(AssertionError, match="returned at seq"):
        stage.check()


def test_a_request_in_doubt_appears_at_most_once(stage: Stage) -> None:
    there, lost = stage.sent(), stage.sent()
    stage.ask(there)
    stage.book.answered(there, refusal(504, "in_doubt"))
    stage.book.lost(lost)
    stage.check()
    twice = stage.sent()
    stage.book.lost(twice)
    stage.ask(twice._replace(wire=twice.wire.replace(b"idempotency_key", b"idempotency_xxx")))
    stage.ask(twice._replace(wire=twice.wire.replace(b"idempotency_key", b"idempotency_yyy")))
    with pytest.raises(AssertionError):
        stage.check()


def test_a_retry_must_receive_the_outcome_of_the_first_request(stage: Stage) -> None:
    first = stage.sent_with_key()
    stage.ask(first)
    stage.book.lost(first)
    doubtful = stage.book.crashed()
    stage.book.check(stage.port)
    (again,) = stage.book.settled(doubtful)
    assert again.was_there
    stage.book.send_again(again)
    answer = stage.ask(again)
    assert stage.book.answered(again, answer)
    assert not stage.book.complaints
    stage.book.answered(again._replace(was_there=False), answer)
    assert stage.book.complaints


def test_records_seen_by_a_reader_must_stay(stage: Stage) -> None:
    sent = stage.sent()
    stage.ask(sent)
    with RawClient(stage.port) as client:
        assert stage.book.read_on(client, "d", 0) > 0
        client.ask("DELETE", "/v0/topics/d")
    stage.book.lost(sent)
    stage.book.crashed()
    stage.book.ledger.forget("d")
    with RawClient(stage.port) as client:
        assert client.ask("PUT", "/v0/topics/d", b"{}").status == 201
    with pytest.raises(AssertionError, match="a reader saw"):
        stage.book.check(stage.port)


def test_an_unexpected_answer_is_detected(stage: Stage) -> None:
    stage.book.answered(stage.sent(), refusal(500, "internal"))
    with pytest.raises(AssertionError, match="unexpected answer"):
        stage.check()
