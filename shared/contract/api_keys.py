"""Who may do what: the API keys, and the one question that is asked of each request.

A key is written `key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`. Scopes are joined by `+`,
prefixes of names by `|`; no scopes are all scopes, no prefixes all names.

A1  The key itself is forgotten when the settings are read: `seal_api_keys` puts its SHA-256 in its place, as
    `sha256-` and 64 hex digits, and nothing behind it ever sees more. Whoever wants to may write keys down in
    that form from the start. It opens nothing: what a client sends is hashed, so a digest that is sent is
    another one.
A2  A key is looked up by its digest and compared in constant time, so neither the lookup nor the comparison
    tells how much of a guess was right. A key has its own entropy; a slow hash would protect nothing more.
A3  What refuses an entry names it by its number and never repeats it.
A4  A name that a key is not for is refused before anybody looks whether it exists, so the answer is the same.
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

_sealed_key = re.compile(SEAL + r"([0-9a-f]{64})")
_plain_key = re.compile(r"[!-~]+")
_prefix = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]*")
_bearer = re.compile(rb"(?i:bearer) +([!-~]+)")

_CHALLENGE: Final = 'Bearer realm="topicsd"'
NO_KEY: Final = Refusal(
    UNAUTHORIZED,
    "a key is required: send the header authorization: Bearer KEY",
    {"www_authenticate": _CHALLENGE},
)
WRONG_KEY: Final = Refusal(
    UNAUTHORIZED, "unknown key", {"www_authenticate": _CHALLENGE + ', error="invalid_token"'}
)
OTHER_NAME: Final = Refusal(FORBIDDEN, "the key does not cover this name")


class Key(NamedTuple):
    """One key, without the key."""

    id: str
    """Tells keys apart in logs and counters: the first digits of the digest."""
    scopes: frozenset[str]
    prefixes: tuple[str, ...]
    """Of the names that it is for; none are all."""
    place: int = 0
    """Where things are counted by key: of its own, unless there are more than `KEY_PLACES`."""

    def allows_name(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def refusal(self, scopes: frozenset[str], name: str) -> Refusal | None:
        """Why it does not do for this."""
        if not scopes <= self.scopes:
            missing = sorted(scopes - self.scopes)
            return Refusal(FORBIDDEN, f"the key lacks the scope {' and '.join(missing)}", {"scopes": missing})
        if name and self.prefixes and not name.startswith(self.prefixes):
            return OTHER_NAME
        return None


class Entry(NamedTuple):
    digest: str
    key: Key


_NO_ENTRY: Final[tuple[bytes, None]] = (b"", None)


class Keys:
    """All keys of the server. Without any, everybody may do everything."""

    def __init__(self, entries: list[Entry]) -> None:
        placed = ((bytes.fromhex(entry.digest), entry.key) for entry in _placed(entries))
        self._entries = {digest: (digest, key) for digest, key in placed}
        self.are_asked_for = bool(self._entries)
        # Without their places, which may be others next time.
        self._keys = {entry.key._replace(place=0) for entry in entries}
        self._by_id = {entry.key.id: entry.key for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, authorization: bytes | None, scopes: frozenset[str], name: str) -> Key | Refusal | None:
        """As `check_sent`, for the value of the header field."""
        return self.check_sent(sent_key_of(authorization), scopes, name)

    def check_sent(self, sent: bytes | None, scopes: frozenset[str], name: str) -> Key | Refusal | None:
        """Return the key of a request that may do what it asks, None when no keys are configured.

        `sent` is what `sent_key_of` returned. `name` is the topic or route that the request is about; empty
        when it is about none, or about several, which the caller asks `Key.allows_name` about.
        """
        if not self._entries:
            return None
        if not sent:
            return NO_KEY
        digest, key = self._entries.get(sent, _NO_ENTRY)
        if not hmac.compare_digest(digest, sent) or key is None:
            return WRONG_KEY
        return key.refusal(scopes, name) or key

    def are_current(self, key: Key | None) -> bool:
        """Whether what a connection was opened with, be it without any key, would do the same today."""
        return not self._keys if key is None else key._replace(place=0) in self._keys

    def allow(self, key_id: str, scopes: frozenset[str], names: Iterable[str]) -> bool:
        """Whether what was opened with the key of that id, or with none, might be opened today."""
        if not self._entries:
            return True
        key = self._by_id.get(key_id)
        return key is not None and scopes <= key.scopes and all(map(key.allows_name, names))

    def check_token(self, token: str, scopes: frozenset[str], name: str) -> Key | Refusal | None:
        """As `check`, for a key that stands in a query."""
        try:
            sent = token.encode("ascii")
        except UnicodeEncodeError:
            return WRONG_KEY if self._entries else None
        return self.check(b"Bearer " + sent, scopes, name)


def sent_key_of(authorization: bytes | None) -> bytes | None:
    """Return the digest of the key in an `Authorization` field; None without a field, empty without a key."""
    if authorization is None:
        return None
    sent = _bearer.fullmatch(authorization)
    return b"" if sent is None else sha256(sent[1]).digest()


def parse_keys(text: str) -> Keys:
    """The keys of the setting, sealed or not; ValueError names what is wrong, by number."""
    return Keys(_parse(text))


def seal_api_keys(text: str) -> str:
    """The setting with every key replaced by its digest; ValueError as with `parse_keys`.

    >>> seal_api_keys("correct-horse-battery:r+w:orders.|bills.")[:50]
    'sha256-62249369389075490555a758353aec61500c6218fa5'
    >>> seal_api_keys("some-key:raed")
    Traceback (most recent call last):
    ValueError: entry 1: unknown scope; allowed: read, write, delete, admin, r, w, d, a, rw, joined by +
    """
    return ",".join(
        f"{SEAL}{entry.digest}:{'+'.join(sorted(entry.key.scopes))}:{'|'.join(entry.key.prefixes)}"
        for entry in _parse(text)
    )


def advise_on_api_keys(text: str) -> str | None:
    """What a person may want to know of keys that are taken. How long a sealed one was nobody knows."""
    keys = (entry.strip().partition(":")[0] for entry in text.split(",")) if text else ()
    short = [str(number) for number, key in enumerate(keys, 1) if len(key) < ADVISED_CHARACTERS]
    if not short:
        return None
    numbers = ", ".join(short)
    return f"the key of entry {numbers} is shorter than {ADVISED_CHARACTERS} characters and might be guessed"


def _placed(entries: list[Entry]) -> Iterator[Entry]:
    """All with their places, the same in every process.

    From the digest and not from the order: a key keeps its place when others come or go, but for the few that
    wanted the same.
    """
    taken: set[int] = set()
    for entry in sorted(entries):
        place = int(entry.digest[:KEY_ID_DIGITS], 16) % KEY_PLACES
        while place in taken and len(taken) < KEY_PLACES:
            place = (place + 1) % KEY_PLACES
        taken.add(place)
        yield entry._replace(key=entry.key._replace(place=place))


def _parse(text: str) -> list[Entry]:
    # An entry that is empty, or a text of blanks, is a mistake and not the wish to have no keys.
    if not text:
        return []
    entries: list[Entry] = []
    numbers: dict[str, int] = {}
    for number, part in enumerate(text.split(","), 1):
        try:
            entry = _parse_entry(part.strip())
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
        if entry.digest in numbers:
            raise ValueError(f"entry {number}: has the key of entry {numbers[entry.digest]}")
        numbers[entry.digest] = number
        entries.append(entry)
    return entries


def _parse_entry(part: str) -> Entry:
    # A prefix may have colons of its own.
    key, _, rest = part.partition(":")
    scope_text, _, prefix_text = rest.partition(":")
    if not key:
        raise ValueError("there is no key")
    if _plain_key.fullmatch(key) is None:
        raise ValueError("a key is of visible ASCII characters")
    sealed = _sealed_key.fullmatch(key)
    if key.startswith(SEAL) and sealed is None:
        raise ValueError(f"{SEAL} is followed by the 64 hex digits of a digest, in lower case")
    digest = sha256(key.encode()).hexdigest() if sealed is None else sealed[1]
    return Entry(digest, Key(digest[:KEY_ID_DIGITS], _parse_scopes(scope_text), _parse_prefixes(prefix_text)))


def _parse_scopes(text: str) -> frozenset[str]:
    if not text:
        return ALL_SCOPES
    found: frozenset[str] = frozenset()
    for name in text.split("+"):
        if name not in SCOPE_NAMES:
            # Not repeated: it is the rest of the key when somebody's key has a colon in it.
            raise ValueError(f"unknown scope; allowed: {', '.join(SCOPE_NAMES)}, joined by +")
        found |= SCOPE_NAMES[name]
    return found


def _parse_prefixes(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = text.split("|")
    for position, prefix in enumerate(prefixes, 1):
        # An empty one would allow every name, and no name begins with any other.
        if _prefix.fullmatch(prefix) is None:
            raise ValueError(f"prefix {position} is none that a name can begin with")
    return tuple(prefixes)
