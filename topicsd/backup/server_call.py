"""A request of a command to the server that has a data directory open.

The server is found by the lock of the directory: that names the links of its processes, which answer
processes of the same user. A URL reaches a server of another user, with a key of the scope `admin`.
"""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from contextlib import closing
from typing import NamedTuple

import msgspec

from shared.ipc.link import HEADER, address_of
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import RemoteRequest, decode_answer, encode_remote_request
from topicsd.backup.repository import BackupError
from topicsd.disk.access import os_error_reason
from topicsd.disk.fs import Fs
from topicsd.disk.layout import lock_path


class Source(NamedTuple):
    """What names the server of a data directory; without a URL it is found by the lock."""

    url: str
    api_key: str


class ServerRequest(NamedTuple):
    operation: str
    path: str
    """The path of the operation in the API."""
    process: str
    """The process that answers: a shard, or the supervisor."""
    subject: str
    """What the server may refuse, for messages."""
    seconds_max: float
    name: str = ""
    """The topic."""
    body: bytes = b""


def call_server(fs: Fs, data_dir: str, source: Source, request: ServerRequest) -> bytes:
    """Return the body of the answer; raise BackupError for a refusal, and without an answer."""
    if source.url:
        return _ask_url(source, request)
    try:
        stat = fs.stat(lock_path(data_dir))
    except FileNotFoundError:
        raise BackupError(f"{data_dir} has no server: no server has used it yet; start one") from None
    remote = encode_remote_request(
        RemoteRequest(request.operation, request.name, "", "application/json", "", "", request.body)
    )
    frame = HEADER.pack(len(remote), LinkKind.REQUEST, 1) + remote
    try:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link:
            link.settimeout(request.seconds_max)
            link.connect(address_of(f"{stat.device:x}-{stat.inode:x}", request.process))
            link.sendall(frame)
            length, _, _ = HEADER.unpack(_receive(link, HEADER.size))
            status, _, body = decode_answer(_receive(link, length))
    except OSError as error:
        raise BackupError(
            f"{data_dir} has no server that answers: {error.strerror or error}; run as the user of the "
            "server and on its machine, or name the server with --url"
        ) from None
    return _checked(status, body, request)


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise OSError(0, "the connection was closed")
        data += part
    return data


def _ask_url(source: Source, call: ServerRequest) -> bytes:
    url = f"{source.url.rstrip('/')}{call.path}"
    request = urllib.request.Request(url, data=call.body or None, method="POST")
    request.add_header("content-type", "application/json")
    if source.api_key:
        request.add_header("authorization", f"Bearer {source.api_key}")
    try:
        with urllib.request.urlopen(request, timeout=call.seconds_max) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        return _checked(error.code, error.read(), call)
    except (OSError, ValueError) as error:
        raise BackupError(f"--url: no response from {source.url}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return os_error_reason(reason) if isinstance(reason, OSError) else str(reason)


def _checked(status: int, body: bytes, request: ServerRequest) -> bytes:
    if status == 200:
        return body
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"status {status}"
    raise BackupError(f"the server refuses {request.subject}: {message}")
