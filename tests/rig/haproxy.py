"""Debian's own HAProxy before several services, as a cluster's load balancer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.rig.debian import program
from tests.rig.server import LOOPBACK, Server, free_port

_CONFIG = """\
defaults
  mode http
  timeout connect 2s
  timeout client 300s
  timeout server 300s
frontend clients
  bind {loopback}:{port}
  monitor-uri /balancer
  default_backend services
backend services
  balance roundrobin
  option httpchk GET /readyz
  default-server check inter 500ms fall 1 rise 1
"""


class Backend(Protocol):
    """Where requests go, and where it is asked whether they may."""

    url: str
    ready_url: str


class HAProxy(Server):
    """Takes an instance out, and in again, by its `/readyz`, asked twice a second."""

    ready_path = "/balancer"

    def __init__(self, services: Sequence[Backend], directory: Path) -> None:
        port, config = free_port(), directory / "haproxy.cfg"
        lines = [
            f"  server s{number} {service.url.removeprefix('http://')}"
            f" check port {urlsplit(service.ready_url).port}\n"
            for number, service in enumerate(services)
        ]
        config.write_text(_CONFIG.format(loopback=LOOPBACK, port=port) + "".join(lines))
        super().__init__(
            [program("haproxy"), "-db", "-f", str(config)], port, directory / "haproxy.log", {}
        )
