"""The manifest of a backup: every file of a restorable data directory, and the objects that hold its bytes.

::

    off  size  field
      0    8   magic     b"TOPICBAK"
      8    4   version   1
     12    4   head      length of the head
     16    8   body      length of the body
     24    N   head      msgpack: what a list shows
     ..    M   body      zlib of msgpack: [[object, ...], [shard, ...], placement, store URL, keys]
     ..   16   checksum  xxh3_128 over all bytes before it

Objects are named by their content, so that one object serves any number of backups and nothing is uploaded
twice. A file is in whole objects, in order, or is a part of one object that holds many small files.

The placement is the content of PLACEMENT.json, empty without one. The store URL names the store of exported
segments to which the backup only refers; it is empty when it refers to none. The keys are the content of
KEYS.json; without one the field is absent, and earlier versions read the manifest.

    >>> head = BackupHead("20260101T000000Z-00000000", 0, "69" * 16, 1, "1", 0, 0, 0)
    >>> data = encode_manifest(BackupManifest(head, [StoredObject(b"d" * 16, 5)], []))
    >>> decode_manifest(data).head == head, StoredObject(b"d" * 16, 5).key
    (True, 'blobs/64/64646464646464646464646464646464-5')

Changes of the format: add a field at the end of its struct, with a default. For any other change raise
VERSION and keep reading earlier versions.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec
import xxhash

MAGIC: Final = b"TOPICBAK"
VERSION: Final = 1
BACKUPS: Final = "backups/"
BLOBS: Final = "blobs/"

_OPENING: Final = struct.Struct("<8sIIQ")
CHECKSUM_BYTES: Final = 16


class ManifestDamaged(Exception):
    """These bytes are not a whole manifest of a backup; the message says why."""


class BackupHead(msgspec.Struct, frozen=True, array_like=True):
    """What a backup says about itself."""

    id: str
    created_ms: int
    instance: str
    shards: int
    program: str
    file_count: int
    file_bytes: int
    uploaded_bytes: int
    pause_ms: float | None = None
    """The pause of writes for its point; None when the server was stopped."""


class StoredObject(msgspec.Struct, frozen=True, array_like=True):
    """One object by its content."""

    digest: bytes
    size: int

    @property
    def key(self) -> str:
        name = self.digest.hex()
        return f"{BLOBS}{name[:2]}/{name}-{self.size}"


class StoredFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file of the data directory."""

    path: str
    size: int
    """The length of the restored file; after `stored_bytes` it has zeros."""
    stored_bytes: int
    objects: list[int]
    """Indexes of the objects that hold it."""
    offset: int
    """Where the file begins in its object, when that holds other files too."""
    digest: bytes
    """The xxh3_128 of the stored bytes; empty when the file fills its objects, whose keys are checksums."""
    identity: tuple[int, int, int]
    """Device, inode and time of modification at the source: an equal one means an unchanged file."""


class Reference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One object in the store of exported segments."""

    key: str
    size: int


class ShardContent(msgspec.Struct, frozen=True, array_like=True):
    """The files of one shard, and the end of its log."""

    shard: int
    files: list[StoredFile]
    log_file: int
    """The last WAL file, by its first ordinal; 0 without a log."""
    log_end: int
    """The offset in it where the log ends."""
    are_heads_exact: bool
    """Whether the log holds every seq that was given out before the point."""
    references: list[Reference] = []
    """The exported segments whose `.data` is only named."""


class BackupManifest(NamedTuple):
    """A decoded manifest."""

    head: BackupHead
    objects: list[StoredObject]
    shards: list[ShardContent]
    placement: bytes = b""
    store_url: str = ""
    keys: bytes = b""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    objects: list[StoredObject]
    shards: list[ShardContent]
    placement: bytes
    store_url: str
    keys: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(BackupHead).decode
_decode_body = msgspec.msgpack.Decoder(_Body).decode


def manifest_key(backup_id: str) -> str:
    return f"{BACKUPS}{backup_id}/manifest"


def encode_manifest(manifest: BackupManifest) -> bytes:
    head = _encode(manifest.head)
    _, *body_fields = manifest if manifest.keys else manifest[:-1]
    body = zlib.compress(_encode(body_fields), 1)
    data = _OPENING.pack(MAGIC, VERSION, len(head), len(body)) + head + body
    return data + xxhash.xxh3_128_digest(data)


def decode_manifest(data: bytes) -> BackupManifest:
    """Decode a manifest; raise ManifestDamaged."""
    if len(data) < _OPENING.size + CHECKSUM_BYTES or data[:8] != MAGIC:
        raise ManifestDamaged("it does not begin as the manifest of a backup")
    if xxhash.xxh3_128_digest(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
        raise ManifestDamaged("its checksum does not match")
    _, version, head_bytes, body_bytes = _OPENING.unpack_from(data)
    if version != VERSION:
        raise ManifestDamaged(f"format version {version}; this program reads version {VERSION}")
    body_at = _OPENING.size + head_bytes
    head = _decode_head(data[_OPENING.size : body_at])
    body = _decode_body(zlib.decompress(data[body_at : body_at + body_bytes]))
    return BackupManifest(head, *msgspec.structs.astuple(body))
