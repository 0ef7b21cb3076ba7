"""Which addresses the requests of webhooks may be sent to.

A client chooses the URL of a webhook, so it must not reach what only this machine reaches: every address that
is not public is refused, unless the operator allows its network. The address itself is checked, when a
connection is made to it, because a name may resolve to another one at any time.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

_NAT64: Final = IPv6Network("64:ff9b::/96")


class AllowedAddresses:
    """The public addresses, and those of the networks that the setting allows.

    >>> addresses = AllowedAddresses("10.1.0.0/16")
    >>> [addresses.allow(one) for one in ("93.184.216.34", "10.1.2.3", "10.2.0.1", "::1", "::ffff:127.0.0.1")]
    [True, True, False, False, False]
    """

    def __init__(self, networks: str) -> None:
        """Take networks as `check_networks` returned them."""
        self._networks = [ip_network(one) for one in networks.split(",")] if networks else []

    def allow(self, text: str) -> bool:
        address = ip_address(text.partition("%")[0])
        # Both the address and the one inside it have to be allowed: routers may use either.
        return all(self._allow_one(one) for one in _with_embedded(address))

    def _allow_one(self, address: Address) -> bool:
        if any(address in network for network in self._networks):
            return True
        return address.is_global and not address.is_multicast


def _with_embedded(address: Address) -> list[Address]:
    """Return the address, or the IPv4 addresses in an address that is translated to them."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    return [address, *(address.teredo or ())]


def check_networks(text: str) -> str:
    """Return the setting in its stored form; ValueError names a wrong entry.

    >>> check_networks("10.0.0.0/8, 127.0.0.1")
    '10.0.0.0/8,127.0.0.1/32'
    >>> check_networks("10.0.0.1/8")
    Traceback (most recent call last):
    ValueError: entry 1: must be a network such as 10.0.0.0/8, or an address
    """
    return ",".join(_check(number, one) for number, one in enumerate(text.split(","), 1)) if text else ""


def _check(number: int, entry: str) -> str:
    try:
        return str(ip_network(entry.strip()))
    except ValueError:
        raise ValueError(f"entry {number}: must be a network such as 10.0.0.0/8, or an address") from None
