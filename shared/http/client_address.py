"""The address of a client, for people."""

from __future__ import annotations

import asyncio


def client_address(transport: asyncio.BaseTransport) -> str:
    """Return `host:port` of the other end; empty for a socket that is not TCP."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return ""
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
