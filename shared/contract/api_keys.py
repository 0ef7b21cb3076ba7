"""API keys: their text form, their scopes and prefixes, and the check of each request.

A key is written `key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`. Scopes are joined by `+`, name
prefixes by `|`. No scopes means all scopes; no prefixes means all names. A digest may be followed by `@` and
the name of the key. The scope `expired`, alone, is for a key that is known and allows nothing any more.

A1  The key itself is dropped when the settings are read: `seal_api_keys` replaces it by its SHA-256, as
    `sha256-` and 64 hex digits, and no later code sees more. Operators may also configure keys in that form.
    The digest authorizes nothing: the server hashes the key of a request, so a digest sent as a key yields
    another digest.
A2  A key is looked up by its digest and compared in constant time, so neither the lookup nor the comparison
    reveals how much of a guess was right. A key is random enough; a slow hash would add no protection.
A3  The refusal of an entry names it by its number and never repeats it.
A4  A name outside the key's prefixes is refused before its existence is checked, so both cases look the same.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from shared.contract.errors import FORBIDDEN, UNAUTHORIZED, Refusal

READ: Final = "read"
WRITE: Final = "write"
DELETE: Final = "delete"
ADMIN: Final = "admin"
SCOPES: Final = (READ, WRITE, DELETE, ADMIN)
ALL_SCOPES: Final = frozenset(SCOPES)

SCOPE_NAMES: Final[dict[str, frozenset[str]]] = {
    **{scope: frozenset({scope}) for scope in SCOPES},
    **{scope[0]: frozenset({scope}) for scope in SCOPES},
    "rw": frozenset({READ, WRITE}),
}

SEAL: Final = "sha256-"
KEY_ID_DIGITS: Final = 8
KEY_PLACES: Final = 1024
ADVISED_CHARACTERS: Final = 16

EXPIRED: Final = "expired"
KEY_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
PREFIX: Final = r"[A-Za-z0-9][A-Za-z0-9._:>-]*"

_sealed_key = re.compile(SEAL + rf"([0-9a-f]{{64}})(?:@({KEY_NAME}))?")
_plain_key = re.compile(r"[!-~]+")
_prefix = re.compile(PREFIX)
_bearer = re.compile(rb"(?i:bearer) +([!-~]+)")

_CHALLENGE: Final = 'Bearer realm="topicsd"'
NO_KEY: Final = Refusal(
    UNAUTHORIZED,
    "a key is required: send the header authorization: Bearer KEY",
    {"www_authenticate": _CHALLENGE},
)
WRONG_KEY: Final = Refusal(
    UNAUTHORIZED,
    "unknown key; keys are set in TOPICS_API_KEYS, the configuration file or PUT /v0/keys/:key",
    {"www_authenticate": _CHALLENGE + ', error="invalid_token"'},
)
EXPIRED_KEY: Final = Refusal(
    UNAUTHORIZED,
    "the key has expired",
    {"www_authenticate": _CHALLENGE + ', error="invalid_token"'},
)
NAME_NOT_COVERED: Final = Refusal(FORBIDDEN, "the key's prefixes do not allow this name")


class ApiKey(NamedTuple):
    """An API key without its secret."""

    id: str
    """First digits of the digest; identify the key in logs and counters."""
    scopes: frozenset[str]
    prefixes: tuple[str, ...]
    """Prefixes of the names that the key covers; none means all names."""
    place: int = 0
    """Index of the key's counters; unique unless there are more than `KEY_PLACES` keys."""
    name: str = ""
    """Empty for a key that was configured without one."""

    def allows_name(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def refusal(self, scopes: frozenset[str], name: str) -> Refusal | None:
        """Return the refusal when the key lacks the scopes or does not cover the name, or None."""
        if not scopes <= self.scopes:
            missing = sorted(scopes - self.scopes)
            return Refusal(FORBIDDEN, f"the key lacks the scope {' and '.join(missing)}", {"scopes": missing})
        if name and self.prefixes and not name.startswith(self.prefixes):
            return NAME_NOT_COVERED
        return None


class KeyEntry(NamedTuple):
    digest: str
    key: ApiKey


_NO_ENTRY: Final[tuple[bytes, ApiKey | None]] = (b"", None)


class ApiKeys:
    """All keys of the server. Without keys every request is allowed."""

    def __init__(self, entries: list[KeyEntry]) -> None:
        placed = ((bytes.fromhex(entry.digest), entry.key) for entry in _placed(entries))
        # An expired key has no scopes, and is as good as unknown.
        self._entries = {digest: (digest, key if key.scopes else None) for digest, key in placed}
        self.are_required = bool(self._entries)
        entries = [entry for entry in entries if entry.key.scopes]
        # Places are left out: they may differ after a reload.
        self._keys = {entry.key._replace(place=0) for entry in entries}
        self._by_id = {entry.key.id: entry.key for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def check(
        self, authorization: bytes | None, scopes: frozenset[str], name: str
    ) -> ApiKey | Refusal | None:
        """Check the value of an `Authorization` field as `check_sent` does."""
        return self.check_sent(sent_key_of(authorization), scopes, name)

    def check_sent(self, sent: bytes | None, scopes: frozenset[str], name: str) -> ApiKey | Refusal | None:
        """Return the key of an allowed request, a refusal, or None when no keys are configured.

        `sent` is what `sent_key_of` returned. `name` is the topic or route of the request. It is empty for a
        request about none or about several; for those the caller checks each with `ApiKey.allows_name`.
        """
        if not self._entries:
            return None
        if not sent:
            return NO_KEY
        digest, key = self._entries.get(sent, _NO_ENTRY)
        if not hmac.compare_digest(digest, sent) or key is None:
            return EXPIRED_KEY if digest else WRONG_KEY
        return key.refusal(scopes, name) or key

    def by_id(self, key_id: str) -> ApiKey | None:
        """Return the key of that id, which has not expired, or None."""
        return self._by_id.get(key_id)

    def __iter__(self) -> Iterator[ApiKey]:
        """Return the keys that have not expired."""
        return iter(self._by_id.values())

    def are_current(self, key: ApiKey | None) -> bool:
        """Return whether the key that opened a connection, or None for no key, is unchanged today."""
        return not self._entries if key is None else key._replace(place=0) in self._keys

    def allow(self, key_id: str, scopes: frozenset[str], names: Iterable[str]) -> bool:
        """Return whether the key of that id, or no key, allows these scopes and names today."""
        if not self._entries:
            return True
        key = self._by_id.get(key_id)
        return key is not None and scopes <= key.scopes and all(map(key.allows_name, names))

    def check_token(self, token: str, scopes: frozenset[str], name: str) -> ApiKey | Refusal | None:
        """Check a key from a query as `check` does."""
        try:
            sent = token.encode("ascii")
        except UnicodeEncodeError:
            return WRONG_KEY if self._entries else None
        return self.check(b"Bearer " + sent, scopes, name)


def sent_key_of(authorization: bytes | None) -> bytes | None:
    """Return the digest of the key in an `Authorization` field.

    The digest is None without a field, and empty when the field holds no key.
    """
    if authorization is None:
        return None
    sent = _bearer.fullmatch(authorization)
    return b"" if sent is None else sha256(sent[1]).digest()


def parse_keys(text: str) -> ApiKeys:
    """Parse the keys of the setting, sealed or not; ValueError gives the number of a bad entry."""
    return ApiKeys(_parse(text))


def seal_api_keys(text: str) -> str:
    """Return the setting with every key replaced by its digest; ValueError as from `parse_keys`.

    >>> seal_api_keys("correct-horse-battery:r+w:orders.|bills.")[:50]
    'sha256-62249369389075490555a758353aec61500c6218fa5'
    >>> seal_api_keys("some-key:raed")
    Traceback (most recent call last):
    ValueError: entry 1: unknown scope; allowed: read, write, delete, admin, r, w, d, a, rw, joined by +
    """
    return ",".join(
        f"{SEAL}{entry.digest}{'@' if entry.key.name else ''}{entry.key.name}:"
        f"{'+'.join(sorted(entry.key.scopes)) or EXPIRED}:{'|'.join(entry.key.prefixes)}"
        for entry in _parse(text)
    )


def advise_on_api_keys(text: str) -> str | None:
    """Return a warning about short keys, or None. The length of a sealed key is unknown."""
    keys = (entry.strip().partition(":")[0] for entry in text.split(",")) if text else ()
    short = [str(number) for number, key in enumerate(keys, 1) if len(key) < ADVISED_CHARACTERS]
    if not short:
        return None
    numbers = ", ".join(short)
    return f"the key of entry {numbers} is shorter than {ADVISED_CHARACTERS} characters and might be guessed"


def _placed(entries: list[KeyEntry]) -> Iterator[KeyEntry]:
    """Assign places to keys, the same in every process.

    The place depends on the digest and not on the order: a key keeps its place when other keys are added or
    removed, except for the few keys whose digests lead to the same place.
    """
    taken: set[int] = set()
    for entry in sorted(entries):
        place = int(entry.digest[:KEY_ID_DIGITS], 16) % KEY_PLACES
        while place in taken and len(taken) < KEY_PLACES:
            place = (place + 1) % KEY_PLACES
        taken.add(place)
        yield entry._replace(key=entry.key._replace(place=place))


def _parse(text: str) -> list[KeyEntry]:
    # An empty entry and a text of blanks are mistakes; only an empty text means no keys.
    if not text:
        return []
    entries: list[KeyEntry] = []
    numbers: dict[str, int] = {}
    for number, part in enumerate(text.split(","), 1):
        try:
            entry = _parse_entry(part.strip())
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
        if entry.digest in numbers:
            raise ValueError(f"entry {number}: must not repeat the key of entry {numbers[entry.digest]}")
        numbers[entry.digest] = number
        entries.append(entry)
    return entries


def _parse_entry(part: str) -> KeyEntry:
    # A prefix may contain colons.
    key, _, rest = part.partition(":")
    scope_text, _, prefix_text = rest.partition(":")
    if not key:
        raise ValueError("the key must not be empty")
    if _plain_key.fullmatch(key) is None:
        raise ValueError("a key must consist of visible ASCII characters")
    sealed = _sealed_key.fullmatch(key)
    if key.startswith(SEAL) and sealed is None:
        raise ValueError(f"{SEAL} must be followed by 64 lower-case hex digits, and optionally @ and a name")
    digest = sha256(key.encode()).hexdigest() if sealed is None else sealed[1]
    name = sealed[2] or "" if sealed is not None else ""
    scopes = frozenset[str]() if scope_text == EXPIRED else _parse_scopes(scope_text)
    prefixes = _parse_prefixes(prefix_text)
    return KeyEntry(digest, ApiKey(digest[:KEY_ID_DIGITS], scopes, prefixes, name=name))


def _parse_scopes(text: str) -> frozenset[str]:
    if not text:
        return ALL_SCOPES
    scopes: frozenset[str] = frozenset()
    for name in text.split("+"):
        if name not in SCOPE_NAMES:
            # The text is not repeated: it is the rest of the key when the key contains a colon.
            raise ValueError(f"unknown scope; allowed: {', '.join(SCOPE_NAMES)}, joined by +")
        scopes |= SCOPE_NAMES[name]
    return scopes


def _parse_prefixes(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = text.split("|")
    for position, prefix in enumerate(prefixes, 1):
        # An empty prefix would allow every name; a prefix that breaks the rule matches no name.
        if _prefix.fullmatch(prefix) is None:
            raise ValueError(f"prefix {position} must be the beginning of a valid name")
    return tuple(prefixes)
