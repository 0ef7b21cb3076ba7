"""Files of one checksummed document: the part of the format that snapshots and bundles share.

::

    off  size  field
      0    8   magic
      8    4   version
     12    8   length    of the body; the file ends with it
     20    8   checksum  xxh3_64 over bytes [0 .. 20) and the body
     28    N   body

The first 28 bytes have the same layout in every version. This distinguishes a damaged version field from a
newer version: only in the second case does the checksum match.

    >>> parts = document_parts(b"TOPICXYZ", 1, [b"bo", b"dy"])
    >>> bytes(body_of(b"".join(parts), b"TOPICXYZ", 1, "sample", DocumentDamage))
    b'body'
"""

from __future__ import annotations

import struct

import xxhash

from topicsd.log.file_header import UnknownVersion

_OPENING = struct.Struct("<8sIQ")
_CHECKSUM = struct.Struct("<Q")
DOCUMENT_HEADER_BYTES = _OPENING.size + _CHECKSUM.size


class DocumentDamage(Exception):
    """These bytes are not a whole document; the message says why."""


def document_parts(magic: bytes, version: int, body: list[bytes]) -> list[bytes]:
    """Return the whole file as a list of parts, with the parts of the body uncopied."""
    opening = _OPENING.pack(magic, version, sum(map(len, body)))
    checksum = xxhash.xxh3_64(opening)
    for part in body:
        checksum.update(part)
    return [opening + _CHECKSUM.pack(checksum.intdigest()), *body]


def body_of(data: bytes, magic: bytes, version: int, kind: str, damage: type[DocumentDamage]) -> memoryview:
    """Check a document and return its body.

    Raise `damage`, or UnknownVersion for a whole document that is newer.
    """
    if len(data) < DOCUMENT_HEADER_BYTES:
        raise damage(f"it ends after {len(data)} bytes, within its header")
    found_magic, found_version, length = _OPENING.unpack_from(data)
    if found_magic != magic:
        raise damage(f"it does not begin with the {kind} magic")
    body = memoryview(data)[DOCUMENT_HEADER_BYTES:]
    if length != len(body):
        raise damage(f"it has {len(body)} bytes after its header, which declares {length}")
    checksum = xxhash.xxh3_64(data[: _OPENING.size])
    checksum.update(body)
    if _CHECKSUM.unpack_from(data, _OPENING.size)[0] != checksum.intdigest():
        raise damage("its checksum does not match")
    if found_version != version:
        raise UnknownVersion(f"{kind} format version {found_version}; this program reads version {version}")
    return body
