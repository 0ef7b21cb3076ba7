"""Bodies of requests about keys: decoding, and the rules of names, scopes, prefixes and times."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shared.contract.api_keys import KEY_NAME, PREFIX, SCOPES
from shared.contract.errors import Refusal, invalid
from shared.text.message import quoted
from shared.text.nearest_name import nearest_name
from shared.text.units import duration_ms, instant_ms
from topicsd.service.input.json_body import JsonBody

PREFIXES_MAX: Final = 100
PREFIX_CHARACTERS_MAX: Final = 255
OVERLAP_MS_MAX: Final = 30 * 86_400_000

_name: Final = re.compile(KEY_NAME)
_prefix: Final = re.compile(PREFIX)


class PutKeyBody(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    scopes: list[str] | None = None
    prefixes: list[str] | None = None
    expires_ms: int | str | msgspec.UnsetType | None = msgspec.UNSET
    require_keys: bool = False


class RotateKeyBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    overlap_ms: int | str = 0


PUT_KEY: Final = JsonBody(PutKeyBody, '{"scopes":["read"],"prefixes":["orders."],"expires_ms":"+30d"}')
ROTATE_KEY: Final = JsonBody(RotateKeyBody, '{"overlap_ms":"10m"}')


def refuse_key_name(name: str) -> Refusal | None:
    """Return the refusal of an invalid name of a key, or None.

    >>> print(refuse_key_name("a b").message)
    key: must be a key name, 1 to 64 of A-Z a-z 0-9 . _ - that begins with a letter or digit, got "a b"
    """
    if _name.fullmatch(name) is not None:
        return None
    rule = "1 to 64 of A-Z a-z 0-9 . _ - that begins with a letter or digit"
    return invalid("key", f"must be a key name, {rule}, got {quoted(name)}")


def scopes_of(body: PutKeyBody) -> tuple[str, ...] | Refusal | None:
    """Return the scopes in the body, None without any, or their refusal."""
    if body.scopes is None:
        return None
    if not body.scopes:
        return invalid("scopes", f"must not be empty; allowed: {', '.join(SCOPES)}")
    for place, scope in enumerate(body.scopes):
        if scope not in SCOPES:
            nearest = nearest_name(scope, SCOPES)
            guess = f", did you mean {nearest}?" if nearest else ""
            return invalid(f"scopes[{place}]", f"must be one of {', '.join(SCOPES)}{guess}")
    return tuple(body.scopes)


def prefixes_of(body: PutKeyBody) -> tuple[str, ...] | Refusal | None:
    """Return the prefixes in the body, None without the field, or their refusal."""
    if body.prefixes is None:
        return None
    if len(body.prefixes) > PREFIXES_MAX:
        return invalid("prefixes", f"must have at most {PREFIXES_MAX} entries", PREFIXES_MAX)
    for place, prefix in enumerate(body.prefixes):
        if len(prefix) > PREFIX_CHARACTERS_MAX or _prefix.fullmatch(prefix) is None:
            rule = f"must be the beginning of a name, 1 to {PREFIX_CHARACTERS_MAX} characters"
            return invalid(f"prefixes[{place}]", f"{rule}, got {quoted(prefix)}")
    return tuple(dict.fromkeys(body.prefixes))


def expiry_of(body: PutKeyBody, now_ms: int) -> int | Refusal | None:
    """Return when the key expires, 0 for never, None without the field, or its refusal."""
    given = body.expires_ms
    if isinstance(given, msgspec.UnsetType):
        return None
    if given is None:
        return 0
    at_ms = instant_ms("expires_ms", given, now_ms)
    if isinstance(at_ms, Refusal):
        return at_ms
    return at_ms if at_ms > now_ms else invalid("expires_ms", "must be in the future, or null for never")


def overlap_of(body: RotateKeyBody) -> int | Refusal:
    """Return for how long the former secret is still valid, or the refusal."""
    overlap_ms = duration_ms("overlap_ms", body.overlap_ms)
    if isinstance(overlap_ms, int) and not 0 <= overlap_ms <= OVERLAP_MS_MAX:
        return invalid("overlap_ms", "must be from 0 to 30 d", OVERLAP_MS_MAX)
    return overlap_ms
