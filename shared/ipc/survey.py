"""The messages of a survey: which topics a shard has that the next rule of the placement gives to another."""

from __future__ import annotations

from typing import Final

import msgspec


class SurveyRequest(msgspec.Struct, array_like=True, frozen=True):
    rule: int
    """The number of shards of the next rule."""
    last_id: int
    """The rule is for topic ids up to this one."""


class ShardSurvey(msgspec.Struct, array_like=True, frozen=True):
    """The answer of one shard."""

    pid: int
    elsewhere: list[str]
    """Topics of this shard that the rule places at another one."""
    departed: list[str]
    """Topics that this shard knows to be on another node, and that the rule places at another shard."""
    hidden: list[str]
    """Topics of which this shard has a copy that it does not serve."""
    next_epoch: int
    """Above every epoch that this shard has given."""


encode_survey_message: Final = msgspec.msgpack.Encoder().encode
decode_survey_request: Final = msgspec.msgpack.Decoder(SurveyRequest).decode
decode_survey: Final = msgspec.msgpack.Decoder(ShardSurvey).decode
