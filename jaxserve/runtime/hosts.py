"""Host names and addresses: loopback, local, from the header ``Host``."""

from __future__ import annotations

import ipaddress

_LOCAL_NAMES = (".localhost", ".local", ".internal")
"""Ends of names that only this machine and its network resolve, as names without a dot: RFC 6761,
RFC 6762, and ICANN's reservation of 2024."""


def named_host(header: str) -> str:
    """The name or address of a header ``Host``, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    address = _address(host)
    if address is None:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_local(name: str) -> bool:
    """Whether a host is an address, or a name that only this machine and its network resolve. The
    owner of any other name may have pointed it to this machine (DNS rebinding)."""
    return "." not in name or name.endswith(_LOCAL_NAMES) or _address(name) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def client_network(host: str) -> str:
    """The client that an address stands for: of IPv6 the network of 64 bits, from which one client
    takes any address."""
    address = _address(host)
    if address is None or address.version == 4 or address.is_loopback:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
