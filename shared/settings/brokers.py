"""The settings of brokers and of the node that they belong to, and what follows from them."""

from __future__ import annotations

import math
from typing import Annotated, Final, Protocol
from urllib.parse import urlsplit

from shared.settings.serving import ServingSettings
from shared.settings.setting import AUTO, GIB, MIB, Setting

ROLES: Final = ("write", "read", "compact")
WEIGHT_MAX: Final = 1000.0


def check_roles(text: str) -> str:
    """Return roles without spaces; raise ValueError for an unknown or a repeated one.

    >>> check_roles("write, read")
    'write,read'
    >>> check_roles("write,append")
    Traceback (most recent call last):
    ValueError: "append" is no role; the roles are write, read, compact
    """
    roles = [one.strip() for one in text.split(",")]
    for role in roles:
        if role not in ROLES:
            raise ValueError(f'"{role[:64]}" is no role; the roles are {", ".join(ROLES)}')
        if roles.count(role) > 1:
            raise ValueError(f"{role} is given twice")
    return ",".join(roles)


def check_weight(text: str) -> str:
    """Return the text of a weight; raise ValueError when it is none.

    >>> check_weight("0.50"), check_weight("2")
    ('0.5', '2')
    >>> check_weight("-1")
    Traceback (most recent call last):
    ValueError: must be a number from 0 to 1000
    """
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= WEIGHT_MAX:
        raise ValueError(f"must be a number from 0 to {WEIGHT_MAX:g}")
    return f"{weight:g}"


def check_address(text: str) -> str:
    """Return an address without a slash at its end; raise ValueError when its form is wrong.

    >>> check_address("http://10.0.0.7:4000/"), check_address("")
    ('http://10.0.0.7:4000', '')
    >>> check_address("10.0.0.7:4000")
    Traceback (most recent call last):
    ValueError: must be an address as http://host:port
    """
    if not text:
        return ""
    address = text.rstrip("/")
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError("must be an address as http://host:port") from None
    if not is_address or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must be an address as http://host:port")
    return address


class BrokerSettings(ServingSettings, frozen=True, kw_only=True):
    """The settings of brokers, after those of serving."""

    brokers: Annotated[
        int,
        Setting(
            help="Broker processes, which serve shared topics. They need an object store.",
            unit="processes",
            minimum=0,
            maximum=8,
            auto="1 with an object store",
        ),
    ] = AUTO

    broker_roles: Annotated[
        str,
        Setting(
            help="What the brokers of this node do: any of `write`, `read` and `compact`.",
            unit="roles",
            is_list=True,
            normalise=check_roles,
        ),
    ] = ",".join(ROLES)

    node_weight: Annotated[
        str,
        Setting(
            help="Share of the homes of shared topics that this node takes, relative to the weights of other "
            "nodes, up to 1000; 0 takes none.",
            unit="weight",
            minimum=1,
            maximum=16,
            normalise=check_weight,
        ),
    ] = "1"

    node_address: Annotated[
        str,
        Setting(
            help="Where other nodes and clients reach this node, as `http://host:port`. Empty is the address "
            "that it listens on.",
            unit="address",
            maximum=253,
            normalise=check_address,
        ),
    ] = ""

    batch_max_bytes: Annotated[
        int,
        Setting(
            help="Size at which a broker writes the records that it has collected as one object.",
            unit="bytes",
            minimum=4 << 10,
            maximum=256 * MIB,
        ),
    ] = 8 * MIB

    home_commits: Annotated[
        bool,
        Setting(
            help="Send the commits of a shared topic to the broker that is its home, where the catalog is "
            "etcd or Oxia and the cluster has several nodes."
        ),
    ] = True

    batch_max_delay_ms: Annotated[
        int,
        Setting(
            help="Longest time for which a broker collects records for one object.",
            unit="ms",
            minimum=1,
            maximum=60_000,
        ),
    ] = 250

    batch_max_delay_low_ms: Annotated[
        int,
        Setting(
            help="The same with a record of a topic of low latency.", unit="ms", minimum=1, maximum=60_000
        ),
    ] = 50

    batch_queue_bytes: Annotated[
        int,
        Setting(
            help="Bytes of records that wait in a broker for the object store and the catalog, above which "
            "new ones are throttled.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=16 * GIB,
        ),
    ] = 64 * MIB

    batch_queue_age_ms: Annotated[
        int,
        Setting(
            help="Age of the oldest record that waits in a broker, above which new ones are throttled.",
            unit="ms",
            minimum=1000,
            maximum=600_000,
        ),
    ] = 30_000

    tail_cache_bytes: Annotated[
        int,
        Setting(
            help="Memory of a broker for the newest records of shared topics.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=256 * GIB,
        ),
    ] = 256 * MIB


class BrokerStore(Protocol):
    """The settings that decide about brokers."""

    @property
    def brokers(self) -> int: ...

    @property
    def store_url(self) -> str: ...


def chosen_brokers(settings: BrokerStore) -> int:
    """Return the number of broker processes."""
    if settings.brokers == AUTO:
        return 1 if settings.store_url else 0
    return settings.brokers
