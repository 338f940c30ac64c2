"""What a result says of the machine that it was measured on."""

import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def facts(*packages: str) -> dict[str, Any]:
    """The machine, and the versions of Python and of these packages."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(psutil.getloadavg()),
        **{name: version(name) for name in packages},
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
