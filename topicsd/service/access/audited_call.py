"""A call whose answer is written to the audit log, around the call of its connection."""

from __future__ import annotations

from collections.abc import Sequence

from shared.runtime.audit import audit, key_label
from topicsd.service.call import Call


class AuditedCall(Call, kw_only=True, eq=False):
    inner: Call
    what: str

    @classmethod
    def of(cls, call: Call, what: str) -> AuditedCall:
        """Return the call that a handler answers in place of `call`."""
        audited = cls(call.name, call.query, call.fields, call.body, call.started, inner=call, what=what)
        audited.is_head, audited.item, audited.prefixes = call.is_head, call.item, call.prefixes
        audited.is_admin, audited.key, audited.shared_body = call.is_admin, call.key, call.shared_body
        call.cancel_wait = audited.cancel
        return audited

    @property
    def address(self) -> str:
        return self.inner.address

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        inner = self.inner
        inner.cancel_wait = None
        inner.is_last = inner.is_last or self.is_last
        audit(self.what, self.name, key_label(self.key), self.address, status)
        inner.send_parts(parts, length, status, fields)
