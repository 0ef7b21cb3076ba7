from __future__ import annotations

import pytest

from shared.contract.topic_config import TopicConfig
from tests.harness.shard.shard_data import empty_data
from topicsd.engine.replay import Replay, ReplayError
from topicsd.log.batch_end import BatchEnd
from topicsd.log.control_frame import LostRangeFrame, TopicCreate, encode_control
from topicsd.log.frame import FrameType, encode_frame
from topicsd.log.reader import WalBatch

CREATE = encode_control(TopicCreate("orders", TopicConfig(), 256), topic_id=7, ts=0)


def append(seq: int, topic_id: int = 7) -> bytes:
    return encode_frame(FrameType.APPEND, topic_id=topic_id, seq=seq, payload=b"{}")


def lost(first: int, last: int) -> bytes:
    return encode_control(LostRangeFrame(first, last, "crash"), topic_id=7, ts=0)


def replay(frames: list[bytes], frame_count: int | None = None) -> None:
    buffer = b"".join(frames)
    count = len(frames) if frame_count is None else frame_count
    closing = BatchEnd(b"e" * 16, 1 + count, 118, len(buffer), 0, 0)
    # What stands behind the frames is their BatchEnd; its length is what counts here.
    batch = WalBatch(buffer + bytes(200), 0, len(buffer), 118, 1, count, closing)
    Replay(empty_data()).batch(batch, 0)


IMPOSSIBLE = {
    "a seq that does not follow": ([CREATE, append(1), append(3)], 3, "seq 3"),
    "a record of no topic": ([append(1)], 1, "does not exist"),
    "a topic that exists already": ([CREATE, CREATE], 2, "exists"),
    "a lost range that begins elsewhere": ([CREATE, append(1), lost(5, 9)], 3, "loses seqs 5 to 9"),
    "a lost range that ends before it begins": ([CREATE, lost(1, 0)], 2, "loses seqs 1 to 0"),
}


@pytest.mark.parametrize(("frames", "ordinal", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_log_that_cannot_be_is_refused_with_the_frame_named(
    frames: list[bytes], ordinal: int, said: str
) -> None:
    with pytest.raises(ReplayError, match=said) as refused:
        replay(frames)
    assert refused.value.ordinal == ordinal
    assert f"ordinal {ordinal}" in str(refused.value)


def test_a_batch_with_another_number_of_frames_is_refused() -> None:
    with pytest.raises(ReplayError, match="5 frames"):
        replay([CREATE, append(1)], frame_count=5)
