"""Addresses: which may be listened on without keys, and sockets that are bound before anything heavy is loaded."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import BadSetting

if TYPE_CHECKING:
    from osd.server.processes import Peers

BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Ports:
    """The bound sockets."""

    api: socket.socket
    admin: socket.socket
    shared: bool = False
    """Whether several processes answer the API's port: then ``api`` only keeps it, and does not listen."""

    def accepting(self) -> socket.socket:
        """Return the API's socket as a process that answers it needs it, to be closed by that."""
        return share(self.api) if self.shared else self.api


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server stands: its ports, and the others behind the API's."""

    ports: Ports
    ready: Callable[[], None]
    """Called once it listens."""
    peers: Peers | None = None
    """The others; None where it is alone."""
    replaces: str | None = None
    """A server that ended without a word, in whose place this one was started."""


def is_local(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, key: str, *, guarded: bool, or_else: str = "") -> None:
    """Raise BadSetting for an address that others can reach where ``guarded`` is False. ``or_else``: what else would be
    right."""
    if not guarded and not is_local(host):
        reason = (
            f"{host} can be reached from other machines, and there are no API keys; make one with `osd keys create`"
        )
        raise BadSetting(source="server", key=key, reason=reason + or_else)


def listen(host: str, port: int, key: str, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens, or, ``shared``, one that is bound only, where others of this user's may be too.
    Raises BadSetting.

    Nagle's algorithm is off on its connections: otherwise a stream's first token waited 40 ms for the client to
    acknowledge the headers. (asyncio turns it off only for sockets that name their protocol.)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        if not shared:
            bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        reason = f"cannot listen on {host}:{port} ({error.strerror or error}); choose another"
        raise BadSetting(source="server", key=key, reason=reason) from None
    return bound


def reserve(host: str, port: int, key: str) -> socket.socket:
    """Return a socket that keeps an address for several processes, each of which listens by one of :func:`share`.
    Raises BadSetting, also where the system would not spread connections among them."""
    if sys.platform != "linux":
        reason = "only Linux spreads one port's connections over several processes (SO_REUSEPORT); give 1"
        raise BadSetting(
            source="server", key="fleet.processes", reason=f"{reason}, or a port to each of several servers"
        )
    with listen(host, port, key) as alone:  # nobody else may have it: with SO_REUSEPORT they would get a part of it
        port = alone.getsockname()[1]
    return listen(host, port, key, shared=True)


def share(reserved: socket.socket) -> socket.socket:
    """Return another socket on an address that is kept by :func:`reserve`, for one process. Raises BadSetting."""
    host, port = reserved.getsockname()[:2]
    return listen(host, port, "server.port", shared=True)


def url(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
