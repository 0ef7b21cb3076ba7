"""The upgrade of a request to a WebSocket: the checks and the response.

The head was parsed strictly before (`shared/http/head.py`) and is not parsed again here. Neither an
extension, such as compression, nor a subprotocol is negotiated.

W1  A WebSocket may be opened by a web page of another origin, without a preflight, to any server that its
    reader's browser can reach. So it is refused if the server has no keys, since only a key would keep such a
    page out, unless `TOPICS_CORS_ORIGINS` allows the origin (as `shared/http/cors.py` O3 says of a POST).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from functools import partial
from typing import Final

from wsproto.utilities import generate_accept_token

from shared.contract.api_keys import ApiKey
from shared.contract.errors import UPGRADE_REQUIRED, Refusal, invalid, shutting_down
from shared.http.cors import foreign_origin
from topicsd.http.http1.timeouts import Connections
from topicsd.http.websocket.connection import WebSocketConnection
from topicsd.http.websocket.session import WsSession
from topicsd.service.call import Call, HttpCall
from topicsd.service.dispatch import Dispatch

VERSION: Final = "13"
KEY_BYTES: Final = 16


class WebSockets:
    def __init__(self, dispatch: Dispatch, connections: Connections) -> None:
        self._dispatch = dispatch
        self._watching = dispatch.streams
        self._connections = connections

    def open(self, call: Call, key: ApiKey | None) -> None:
        refusal = self._refuse(call, has_key=key is not None)
        if refusal is not None:
            call.refuse(refusal)
            return
        assert isinstance(call, HttpCall)
        self._watching.permits.enter("" if key is None else key.id, call, partial(self._on_permit, call, key))

    def _on_permit(self, call: HttpCall, key: ApiKey | None, refusal: Refusal | None) -> None:
        """Open the WebSocket, once the stream is permitted and counted."""
        if refusal is not None:
            call.refuse(refusal)
            return
        self._watching.count_stream(1)
        if self._dispatch.is_draining:
            self._release(key)
            call.refuse(shutting_down())
        else:
            self._open(call, key)

    def _release(self, key: ApiKey | None) -> None:
        self._watching.permits.leave("" if key is None else key.id)
        self._watching.count_stream(-1)

    def _open(self, call: HttpCall, key: ApiKey | None) -> None:
        accept = generate_accept_token(call.fields.websocket_key.encode())
        head = (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-accept: %b\r\n\r\n" % accept
        )
        handlers = self._dispatch.handlers
        connection = WebSocketConnection(
            head,
            handlers.body_bytes_max,
            self._connections,
            handlers.monotonic,
            partial(WsSession, dispatch=self._dispatch, feeds=self._watching.feeds, key=key),
            on_end=partial(self._release, key),
            on_lag=self._watching.count_lagging,
        )
        call.switch_protocol(connection)

    def _refuse(self, call: Call, has_key: bool) -> Refusal | None:
        fields = call.fields
        protocols = {one.strip() for one in fields.upgrade.split(",")}
        is_upgrade = "websocket" in protocols and "upgrade" in fields.connection
        if not is_upgrade or not isinstance(call, HttpCall) or call.is_head or call.is_old:
            return _upgrade_required("a WebSocket upgrade is required: send GET with `upgrade: websocket`")
        if fields.websocket_version != VERSION:
            return _upgrade_required(f"sec-websocket-version: must be {VERSION}")
        if call.body:
            return invalid("content-length", "must be 0: a WebSocket request has no body")
        if not _is_nonce(fields.websocket_key):
            return invalid("sec-websocket-key", f"must be {KEY_BYTES} bytes in base64")
        if not (has_key or self._dispatch.origins.admit(fields)):
            return foreign_origin()
        if self._dispatch.is_draining:
            return shutting_down()
        return None


def _upgrade_required(message: str) -> Refusal:
    return Refusal(UPGRADE_REQUIRED, message, {"upgrade": "websocket", "sec_websocket_version": VERSION})


def _is_nonce(text: str) -> bool:
    try:
        return len(b64decode(text, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False
