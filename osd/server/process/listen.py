"""Addresses: which may be listened on without keys, and sockets that are bound before anything heavy is loaded."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from storage.errors import BadSetting

BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Ports:
    """The bound sockets."""

    api: socket.socket
    admin: socket.socket


def is_local(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, key: str, *, guarded: bool) -> None:
    """Raise BadSetting for an address that others can reach where ``guarded`` is False."""
    if not guarded and not is_local(host):
        reason = (
            f"{host} can be reached from other machines, and there are no API keys; make one with `osd keys create`, "
            "or give --no-keys to let everybody in"
        )
        raise BadSetting(source="server", key=key, reason=reason)


def listen(host: str, port: int, key: str) -> socket.socket:
    """Return a bound socket. Raises BadSetting.

    Nagle's algorithm is off on its connections: otherwise a stream's first token waited 40 ms for the client to
    acknowledge the headers. (asyncio turns it off only for sockets that name their protocol.)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        reason = f"cannot listen on {host}:{port} ({error.strerror or error}); choose another"
        raise BadSetting(source="server", key=key, reason=reason) from None
    return bound


def url(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
