"""The named keys of a server: their records, and KEYS.json, which keeps them.

::

    {"format": 1, "keys": [{"name": "billing", "digest": "64 hex digits", "scopes": ["read"], "prefixes": [],
     "created_ms": 1795037271038, "expires_ms": 0, "former_digest": "", "former_expires_ms": 0}],
     "checksum": "xxh3_64 of the others"}

N1  The file holds the SHA-256 of each secret and never a secret.
N2  A file that cannot be read refuses the start: without its keys, every client could do everything.
N3  A directory that once had keys always requires one: an expired key stays in the file, and the last key
    with the scope admin cannot be revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import xxhash

from shared.contract.api_keys import EXPIRED, KEY_ID_DIGITS, SEAL, parse_keys

KEYS_NAME: Final = "KEYS.json"
KEYS_FORMAT: Final = 1
KEYS_MAX: Final = 1000
"""Named keys of a server; with more, keys would share counters."""


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    digest: str
    scopes: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    created_ms: int
    expires_ms: int = 0
    """0 for a key that does not expire."""
    former_digest: str = ""
    """The digest of the secret before the last rotation; empty without one."""
    former_expires_ms: int = 0

    @property
    def id(self) -> str:
        return self.digest[:KEY_ID_DIGITS]

    def is_expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    def next_change_ms(self, now_ms: int) -> int | None:
        """Return when a secret of the key expires next, or None."""
        times = [one for one in (self.expires_ms, self.former_expires_ms) if one > now_ms]
        return min(times, default=None)


WriteKeys = Callable[[Sequence[StoredKey]], None]
"""Replaces KEYS.json durably. Blocks for a sync."""


class KeyStorage(NamedTuple):
    """The named keys at the start, and the function that replaces their file, if there is one."""

    keys: Sequence[StoredKey] = ()
    write: WriteKeys | None = None


NO_KEYS: Final = KeyStorage()


class KeyFileError(Exception):
    """KEYS.json cannot be read; the message says why."""


class _KeyFormat(msgspec.Struct):
    format: int


class _KeyContent(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    keys: list[StoredKey]
    checksum: str = ""


def encode_keys(keys: Iterable[StoredKey]) -> bytes:
    return (
        msgspec.json.format(msgspec.json.encode(_with_checksum(_KeyContent(KEYS_FORMAT, list(keys))))) + b"\n"
    )


def decode_keys(text: bytes, path: str) -> list[StoredKey]:
    """Return the keys in a file; raise KeyFileError.

    >>> key = StoredKey(name="ci", digest="0" * 64, scopes=("read",), created_ms=1)
    >>> decode_keys(encode_keys([key]), "KEYS.json") == [key]
    True
    >>> decode_keys(encode_keys([key]).replace(b"read", b"write"), "KEYS.json")
    Traceback (most recent call last):
    shared.ipc.key_file.KeyFileError: KEYS.json: damaged: its checksum does not match
    """
    try:
        number = msgspec.json.decode(text, type=_KeyFormat).format
        if number != KEYS_FORMAT:
            raise KeyFileError(f"{path}: unknown format {number}; this program reads format {KEYS_FORMAT}")
        content = msgspec.json.decode(text, type=_KeyContent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: damaged: {error}") from None
    if content != _with_checksum(content):
        raise KeyFileError(f"{path}: damaged: its checksum does not match")
    try:
        parse_keys(key_text(content.keys, 0))
    except ValueError as error:
        raise KeyFileError(f"{path}: damaged: {error}") from None
    return content.keys


def key_text(keys: Sequence[StoredKey], now_ms: int, configured: str = "") -> str:
    """Return the configured keys and these in the form of the setting, as workers receive them."""
    entries = [configured] if configured else []
    # A secret that was also configured has the rights of the configuration.
    for key in keys:
        rights = f"{'+'.join(key.scopes)}:{'|'.join(key.prefixes)}"
        is_expired = key.is_expired(now_ms)
        if key.digest not in configured:
            entries.append(f"{SEAL}{key.digest}@{key.name}:{EXPIRED if is_expired else rights}")
        if key.former_digest and key.former_digest not in configured:
            is_over = is_expired or key.former_expires_ms <= now_ms
            entries.append(f"{SEAL}{key.former_digest}@{key.name}:{EXPIRED if is_over else rights}")
    return ",".join(entries)


def _with_checksum(content: _KeyContent) -> _KeyContent:
    without_checksum = msgspec.json.encode(msgspec.structs.replace(content, checksum=""))
    return msgspec.structs.replace(content, checksum=xxhash.xxh3_64_hexdigest(without_checksum))
