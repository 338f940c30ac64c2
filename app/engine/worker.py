"""A headless engine: another node's part of an engine that spans several.

vllm's own headless mode does the work. Left to itself it waits for ever for a head node that is
gone, and takes ten seconds to stop: both ends are seen to here.
"""

import argparse
import contextlib
import logging
import multiprocessing
import socket
import threading
import time

from vllm.entrypoints.cli.serve import run_headless

from app.engine.arguments import parse_arguments
from app.engine.processes import end, engine_processes
from app.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
_JOIN_S = 2.0


def run(settings: Settings) -> None:
    """Run this node's ranks until they end, which they do not do by themselves. Blocks.

    Raises:
        SettingsError: the settings do not describe a part of an engine.
        SystemExit: a signal has asked for the end.

    """
    if settings.engine.model is None:
        raise SettingsError("engine.model: a worker needs the same model as its head node")
    args = parse_arguments(settings, settings.engine.model, served_name=None)
    if not (args.node_rank or args.data_parallel_start_rank):
        raise SettingsError("engine.node_rank: must be above 0: rank 0 is the node that serves")
    args.headless, args.api_server_count = True, 0
    try:
        if args.node_rank:
            threading.Thread(target=_end_with_head, args=(args,), daemon=True).start()
        run_headless(args)
    finally:
        _end_processes()


def _end_with_head(args: argparse.Namespace) -> None:
    """End this node's engine processes once the head node's are gone; `run` then returns.

    The head node's first rank listens on the master port for as long as it lives
    (torch.distributed's store), so that a connection to it ends with it.
    """
    with _connection(args.master_addr, args.master_port) as head, contextlib.suppress(OSError):
        head.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        head.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        head.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        head.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        head.recv(1)
    logger.error("the head node is gone")
    _end_processes()


def _end_processes() -> None:
    """Kill this node's ranks, and what they have started.

    Children are waited for by who started them: what psutil has waited for, multiprocessing takes
    to be alive, and vllm waits ten seconds for it.
    """
    processes = engine_processes()
    for child in multiprocessing.active_children():
        child.kill()
        child.join(_JOIN_S)
    end(processes)


def _connection(host: str, port: int) -> socket.socket:
    """A connection to the head node, however long it takes to come up."""
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection((host, port))
        time.sleep(_RETRY_S)
