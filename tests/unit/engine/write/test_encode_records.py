from __future__ import annotations

import msgspec
import pytest

from shared.settings.settings import Settings
from tests.harness.shard.one_shard import record
from topicsd.engine.write.encode_records import UNCOPIED_BYTES, encode_records
from topicsd.log.frame import parse_frame, payload_with_meta


@pytest.mark.parametrize(
    "size", [1, UNCOPIED_BYTES - 3, UNCOPIED_BYTES - 2, UNCOPIED_BYTES, 10 * UNCOPIED_BYTES]
)
@pytest.mark.parametrize("meta", [None, {"a": 1}])
@pytest.mark.parametrize("tag", [None, "t"])
def test_a_record_of_any_size_is_the_same_frame(size: int, meta: object, tag: str | None) -> None:
    data = b'"%b"' % (b"x" * size)
    encoded = encode_records(
        [record(data, tag, "n" if tag else None, meta)], None, 7, 3, 1000, False, Settings()
    )
    assert isinstance(encoded, tuple)
    parts, lengths, total, _ = encoded
    written = b"".join(parts)
    assert [len(written)] == lengths == [total]
    frame = parse_frame(written, 0, len(written))
    whole = data if meta is None else payload_with_meta(data, msgspec.json.encode(meta))
    assert (frame.payload, frame.tag, frame.node) == (whole, (tag or "").encode(), b"n" if tag else b"")


def test_large_data_is_not_copied() -> None:
    given = record(b'"%b"' % (b"x" * UNCOPIED_BYTES))
    encoded = encode_records([given], None, 7, 3, 1000, False, Settings())
    assert isinstance(encoded, tuple)
    assert encoded[0][1] is given.data
