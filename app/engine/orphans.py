"""Ends the engine's processes when the one that started them is gone, however it went.

A service that is killed cannot end its engine, and an engine without a service holds the GPU.
"""

import multiprocessing
import os
import threading
import time

import psutil

from app.engine.processes import end

_EVERY_S = 0.5


def end_with_parent() -> None:
    """Watch the parent of this process, one that `multiprocessing` spawned, from a thread."""
    threading.Thread(target=_watch, name="parent watch", daemon=True).start()


def _watch() -> None:
    # By its number: the pipe that Python's own watch of a parent looks at ends with the object
    # that holds it, too. An orphan has another parent at once, whatever becomes of the old one.
    while not is_orphan():
        time.sleep(_EVERY_S)
    end(psutil.Process().children(recursive=True))
    os._exit(1)


def is_orphan() -> bool:
    """Whether the process that has spawned this one is gone; false until it is known."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.pid != os.getppid()
