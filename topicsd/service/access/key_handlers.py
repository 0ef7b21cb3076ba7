"""The endpoints of named keys and `/v0/whoami`: decode, and pass the request to the supervisor."""

from __future__ import annotations

from functools import partial
from typing import Final

from shared.contract.errors import Refusal, in_doubt, no_answer
from shared.ipc.key_request import KeyRequest, encode_key_request
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer
from shared.runtime.clock import Clock
from topicsd.engine.jobs import Background, BackgroundJob, operation
from topicsd.service.access.key_bodies import (
    PUT_KEY,
    ROTATE_KEY,
    expiry_of,
    overlap_of,
    prefixes_of,
    refuse_key_name,
    scopes_of,
)
from topicsd.service.call import Call, start_job

KEY_OPERATIONS: Final = frozenset({"list_keys", "put_key", "key_state", "rotate_key", "delete_key", "whoami"})
_CHANGES: Final = frozenset({"put_key", "rotate_key", "delete_key"})
_NAMED: Final = KEY_OPERATIONS - {"list_keys", "whoami"}


class KeyHandlers:
    def __init__(self, links: LinkPool, jobs: Background, clock: Clock) -> None:
        self._links = links
        self._jobs = jobs
        self._clock = clock

    def start(self, what: str, call: Call) -> None:
        request = self._request(what, call)
        if isinstance(request, Refusal):
            call.refuse(request)
        else:
            start_job(self._jobs, what, call, self._ask(call, request))

    def _request(self, what: str, call: Call) -> KeyRequest | Refusal:
        """Return the checked request for the supervisor."""
        refusal = refuse_key_name(call.name) if what in _NAMED else None
        if refusal is not None:
            return refusal
        key_id = "" if call.key is None else call.key.id
        make = partial(KeyRequest, what, call.name, key_id, call.address)
        if what == "rotate_key":
            rotation = ROTATE_KEY.decode(call.body)
            overlap_ms = rotation if isinstance(rotation, Refusal) else overlap_of(rotation)
            return overlap_ms if isinstance(overlap_ms, Refusal) else make(overlap_ms=overlap_ms)
        if what != "put_key":
            return make()
        body = PUT_KEY.decode(call.body)
        if isinstance(body, Refusal):
            return body
        scopes, prefixes = scopes_of(body), prefixes_of(body)
        expires_ms = expiry_of(body, self._clock.now_ms())
        if isinstance(scopes, Refusal):
            return scopes
        if isinstance(prefixes, Refusal):
            return prefixes
        if isinstance(expires_ms, Refusal):
            return expires_ms
        return make(scopes, prefixes, expires_ms, requires_keys=body.require_keys)

    def _ask(self, call: Call, request: KeyRequest) -> BackgroundJob[Refusal | None]:
        answer: bytes | None = yield from operation(
            partial(self._links.call, SUPERVISOR, LinkKind.KEY_REQUEST, encode_key_request(request))
        )
        if not answer:
            is_in_doubt = answer != NEVER_SENT and request.operation in _CHANGES
            return in_doubt(None) if is_in_doubt else no_answer(None)
        status, fields, body = decode_answer(answer)
        call.send_parts([body], len(body), status, fields)
        return None
