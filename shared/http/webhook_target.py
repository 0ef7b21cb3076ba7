"""The URL and the secret of a webhook, a route whose destination is a URL."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import urlsplit

from shared.contract.errors import Refusal, invalid

URL_BYTES_MAX: Final = 2048
SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
BATCH_MAX: Final = 1000
TIMEOUT_MS_MIN: Final = 100
TIMEOUT_MS_MAX: Final = 60_000
ATTEMPTS_MAX: Final = 1000

_SCHEMES: Final = ("https://", "http://")
_PORT_MAX: Final = 65535


def is_url(dest: str) -> bool:
    """Return whether the destination of a route is a URL. No name of a topic has a slash."""
    return "://" in dest


def refuse_url(url: str) -> Refusal | None:
    """Return why a URL cannot be the destination of a webhook.

    >>> refuse_url("https://example.com/in?of=orders")
    >>> refuse_url("https://user:word@example.com/").message
    'dest: must be a URL without a user or a password; a receiver checks the signature instead'
    """
    size = len(url.encode())
    if size > URL_BYTES_MAX:
        return invalid("dest", f"must be a URL of at most {URL_BYTES_MAX} bytes, got {size}", URL_BYTES_MAX)
    if not url.startswith(_SCHEMES):
        return invalid("dest", "must be a topic, or a URL that begins with https:// or http://")
    if not url.isascii() or not url.isprintable() or " " in url:
        return invalid("dest", "must be a URL of printable ASCII characters without spaces; encode others")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return invalid("dest", f"must have a valid host, and a port from 1 to {_PORT_MAX}")
    if parts.username is not None:
        rule = "must be a URL without a user or a password; a receiver checks the signature instead"
        return invalid("dest", rule)
    if not host or port == 0:
        return invalid("dest", f"must have a valid host, and a port from 1 to {_PORT_MAX}")
    if parts.fragment:
        return invalid("dest", "must be a URL without a fragment")
    return None


def secret_key(secret: str) -> bytes | Refusal:
    """Return the key of a secret, or why it is not one. No message contains it.

    >>> secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").hex()[:8]
    '31f290f6'
    >>> secret_key("whsec_c2hvcnQ=").message
    'secret: must have from 24 to 64 bytes, got 5'
    """
    encoded = secret.removeprefix(SECRET_PREFIX)
    if encoded == secret:
        return invalid("secret", f"must be {SECRET_PREFIX} followed by base64 of 24 to 64 random bytes")
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return invalid("secret", f"must be valid base64 after {SECRET_PREFIX}")
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        bounds = f"from {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
        return invalid("secret", f"must have {bounds}, got {len(key)}", SECRET_BYTES_MAX)
    return key
