"""A client for HTTP/1.1 or HTTP/2, with the same methods for whole requests.

Promises: `ask`, or `start` and `finish`, mean the same with either protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.harness.h2_client import H2Client
from tests.harness.http_server import H2, HTTP1_PORTS
from tests.harness.raw_client import RawClient

AnyClient = RawClient | H2Client
ALL_PORTS: Final = (*HTTP1_PORTS, H2)


def connect(ports: Mapping[str, int], lane: str) -> AnyClient:
    return H2Client(ports[lane]) if lane == H2 else RawClient(ports[lane])
