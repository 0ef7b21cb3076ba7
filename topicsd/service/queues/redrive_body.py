"""The body of a redrive request, and its bounds."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import BATCH_TOO_LARGE, Refusal, invalid
from shared.contract.topic_config import NUMBER_MAX
from shared.text.units import instant_ms
from topicsd.engine.requests import DeleteRequest
from topicsd.engine.transfer.redrive import RedriveRequest
from topicsd.service.input.bodies import delete_request, refuse_number, refuse_seqs
from topicsd.service.input.clamped import clamped_to
from topicsd.service.input.json_body import JsonBody
from topicsd.service.input.position import one_position
from topicsd.service.input.tag_match import SentMatch
from topicsd.service.queues.bodies import SEQS_MAX

MAX: Final = 1000
MAX_MAX: Final = 10_000


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The records to redrive: those that match all given fields, or all records without any."""

    seqs: list[int] | None = None
    match: SentMatch | None = None
    from_ts: int | str | None = None
    to_ts: int | str | None = None
    from_seq: int | UnsetType = UNSET
    after_seq: int | UnsetType = UNSET
    max: int = MAX
    rate: int | None = None
    dry_run: bool = False


class DecodedRedrive(NamedTuple):
    request: RedriveRequest
    clamped: dict[str, int]
    """The values used for numbers over a bound."""


_REDRIVE: Final = JsonBody(RedriveBody, '{"max":100}')


def decode_redrive(body: bytes, now_ms: int) -> DecodedRedrive | Refusal:
    redrive = _REDRIVE.decode(body)
    if isinstance(redrive, Refusal):
        return redrive
    after_seq = one_position("", redrive.from_seq, redrive.after_seq)
    if isinstance(after_seq, Refusal):
        return after_seq
    after_seq = after_seq or 0
    from_ts, to_ts = (_instant_ms(field, getattr(redrive, field), now_ms) for field in ("from_ts", "to_ts"))
    if isinstance(from_ts, Refusal):
        return from_ts
    if isinstance(to_ts, Refusal):
        return to_ts
    refusal = None
    for field, value in (("max", redrive.max), ("rate", redrive.rate)):
        if refusal is None and value is not None and value < 1:
            refusal = invalid(field, f"must be at least 1, got {value}")
    seqs = redrive.seqs
    if refusal is None and seqs is not None and len(seqs) > SEQS_MAX:
        message = f"seqs: must have at most {SEQS_MAX} entries, got {len(seqs)}"
        refusal = Refusal(BATCH_TOO_LARGE, message, {"field": "seqs", "max": SEQS_MAX})
    refusal = refusal or refuse_seqs(seqs)
    tags = DeleteRequest() if redrive.match is None else delete_request(None, redrive.match)
    if refusal is not None or isinstance(tags, Refusal):
        return refusal or tags  # type: ignore[return-value]
    count = min(redrive.max, MAX_MAX)
    request = RedriveRequest(
        None if seqs is None else sorted({seq for seq in seqs if seq > after_seq}),
        tags.tag,
        tags.is_prefix,
        from_ts,
        NUMBER_MAX if to_ts is None else to_ts,
        after_seq,
        count,
        redrive.rate or 0,
        redrive.dry_run,
    )
    return DecodedRedrive(request, clamped_to(max=(redrive.max, count)))


def _instant_ms(field: str, given: int | str | None, now_ms: int) -> int | Refusal | None:
    ms = None if given is None else instant_ms(field, given, now_ms)
    return ms if isinstance(ms, Refusal) else refuse_number(field, ms) or ms
