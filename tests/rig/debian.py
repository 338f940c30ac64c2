"""Programs that come from Debian's packages."""

import os
import shutil

from tests.rig.server import ServerError

# Where Debian has daemons, whoever runs the tests.
_SYSTEM = "/usr/sbin"


def program(name: str, package: str | None = None) -> str:
    """The path of a program; `package` has its name if nothing else is said. Raises ServerError."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), _SYSTEM)))
    if path is None:
        raise ServerError(f"{name} is not installed: deploy/debian.sh {package or name}")
    return path
