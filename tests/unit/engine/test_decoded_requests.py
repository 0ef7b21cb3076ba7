import msgspec

from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.requests import NO_META, AppendRequest
from topicsd.engine.write.append import append

BODY = b'{"records":[{"data":{"b":1.50,"a":2}},{"data":null,"tag":"t","node":"n","meta":{"k" : [1]}}]}'


def test_a_request_decodes_from_json_and_keeps_data_and_meta_as_they_are() -> None:
    request = msgspec.json.decode(BODY, type=AppendRequest)
    assert request.records[0].meta is NO_META
    shard = OneShard()
    reply = RecordedReply()
    append(shard.shard.state, "a", request, reply)
    shard.settle()
    first, second = shard.read("a").records
    assert (first.data, first.meta) == (b'{"b":1.50,"a":2}', None)
    assert (second.data, second.meta, second.tag, second.node) == (b"null", b'{"k" : [1]}', b"t", b"n")
