"""Refuses every socket but loopback in the Python process that imports it.

Python imports a module of this name at start-up, so `utils.setup.offline` puts this folder on PYTHONPATH and every
Python child is guarded, notebook kernels included. With OFFLINE_LOG=file each refusal is also noted there.
"""

import os
import sys

_NAMED = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
_ADDRESSED = {"socket.connect", "socket.sendto", "socket.sendmsg"}


def _is_outside(host: object) -> bool:
    """True when talking to `host` (a name, an address or None) would leave this machine."""
    import ipaddress
    import socket

    name = host.decode("idna") if isinstance(host, (bytes, bytearray)) else host
    if not name:
        return False
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return str(name).lower() not in ("localhost", socket.gethostname().lower())
    address = getattr(address, "ipv4_mapped", None) or address
    return not (address.is_loopback or address.is_unspecified)


def _audit(event: str, arguments: tuple) -> None:
    if event in _NAMED:
        host = arguments[0]
    elif event in _ADDRESSED:
        address = arguments[1]
        # Unix sockets have a path or None here, netlink sockets two numbers: neither leaves the machine.
        if not (isinstance(address, tuple) and address and isinstance(address[0], (str, bytes, bytearray))):
            return
        host = address[0]
    else:
        return
    if not _is_outside(host):
        return
    if log := os.environ.get("OFFLINE_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{event} {host}\n")
    raise PermissionError(f"The network is cut (utils.setup.offline): {event} to {host!r} was refused.")


sys.addaudithook(_audit)
