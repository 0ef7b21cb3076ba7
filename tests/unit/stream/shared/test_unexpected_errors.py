"""An unexpected error in the read of a shared topic refuses that read, and no read of another topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.contract.errors import INTERNAL
from tests.harness.brokers.one_broker import OneBroker
from tests.harness.stage.feed_shards import Collector, feed_spec
from tests.harness.stage.shared_stage import EPOCH, SharedStage
from topicsd.broker.broker import ReadLimits
from topicsd.broker.read.reader import ROW_SECONDS
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.stream.feed import ERROR_DELAY_SECONDS
from topicsd.stream.shared.shared_reads import SharedReads


@pytest.fixture(name="stage")
def _stage() -> SharedStage:
    stage = SharedStage(OneBroker(read_limits=ReadLimits(poll_seconds=1e6)))
    for name in ("a", "b"):
        stage.one.topics.create(name, EPOCH, b"{}")
        stage.one.appended(name, b"1")
    return stage


@pytest.fixture(name="broken")
def _broken() -> Iterator[pytest.MonkeyPatch]:
    """Break the reads of the topic `a`; `undo` repairs them."""
    real: Any = SharedReads._assemble

    def assemble(reads: SharedReads, topic: SharedTopic, *args: Any, **fields: Any) -> Any:
        if topic.name == "a":
            raise RuntimeError("a secret of ours")
        return real(reads, topic, *args, **fields)

    patch = pytest.MonkeyPatch()
    patch.setattr(SharedReads, "_assemble", assemble)
    yield patch
    patch.undo()


@pytest.mark.parametrize("passed_seconds", [0, 2 * ROW_SECONDS], ids=["from memory", "after a lookup"])
def test_a_read_is_refused_and_others_are_answered(
    stage: SharedStage, broken: pytest.MonkeyPatch, passed_seconds: float
) -> None:
    stage.one.advance(passed_seconds * 1000, step_ms=1000)
    calls = [stage.begin_diff(name) for name in ("a", "b", "a", "b")]
    stage.settle()
    assert [call.answer[0] for call in calls] == [500, 200, 500, 200]
    assert b"secret" not in calls[0].answer[1]
    broken.undo()
    assert [one["$seq"] for one in stage.shared_diff("a")["records"]] == [1]


def test_a_feed_reports_it_once_and_reads_again(
    stage: SharedStage, broken: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = (Collector(stage.reader.feeds.broker_feed(feed_spec(name))) for name in ("a", "b"))
    stage.settle()
    stage.one.advance(2500 * ERROR_DELAY_SECONDS)
    (refusal,) = failing.refusals
    assert refusal.code == INTERNAL
    assert "secret" not in refusal.message
    assert len([record for record in caplog.records if record.exc_info]) == 3
    assert other.seqs == [1]
    broken.undo()
    stage.one.advance(1000 * ERROR_DELAY_SECONDS)
    assert failing.seqs == [1]


def test_a_failing_lookup_of_one_topic_ends_those_of_others(stage: SharedStage) -> None:
    stage.one.advance(2000 * ROW_SECONDS, step_ms=1000)
    answers: list[Any] = []

    def fail(topic: SharedTopic) -> None:
        raise RuntimeError("a bug")

    topics = stage.one.broker.topics
    # The first lookup is on its way, and the others are answered together.
    topics.find("a", ROW_SECONDS)(answers.append)
    topics.find("b", ROW_SECONDS)(fail)
    topics.find("b", ROW_SECONDS)(answers.append)
    with pytest.raises(RuntimeError, match="a bug"):
        stage.settle()
    stage.settle()
    assert [topic.name for topic in answers] == ["a", "b"]
    topics.find("a", -1.0)(answers.append)
    stage.settle()
    assert len(answers) == 3
