"""The service in a container, held as a strict cluster would hold it. It needs root and podman."""

import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.rig.debian import program
from tests.rig.server import LOOPBACK, Server, free_port

CONFINED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--timeout=1800",  # whatever becomes of the test
    # The engine's processes need 160 MiB of it; an engine's default is 64.
    "--shm-size=256m",
)
"""No rights, and nothing to write to but /tmp and what `mounts` adds."""


def podman(*arguments: str) -> list[str]:
    """A command line. With runc, because crun knows no cgroups of the hybrid kind."""
    return [program("podman"), "--runtime", program("runc"), *arguments]


def output_of(*arguments: str) -> str:
    """What podman prints. Raises CalledProcessError."""
    return subprocess.run(podman(*arguments), check=True, capture_output=True, text=True).stdout


class Container(Server):
    """One container of an image; gone after `close`. Its exit code is that of `wait`."""

    def __init__(
        self,
        image: str,
        log: Path,
        *,
        mounts: Sequence[tuple[Path, str]] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        port = free_port()
        self.name = f"tidegate-{port}"
        served = {"TIDEGATE_SERVER__HOST": LOOPBACK, "TIDEGATE_SERVER__PORT": str(port)}
        command = podman("run", "--name", self.name, "--network=host", *_limits(), *CONFINED)
        command += [f"--volume={source}:{target}" for source, target in mounts]
        command += [f"--env={name}={value}" for name, value in {**served, **settings}.items()]
        super().__init__([*command, *options, image, *arguments], port, log, {})
        self._held.callback(self._remove)

    def run(self, *command: str) -> str:
        """What a command in it prints. Raises CalledProcessError."""
        return output_of("exec", self.name, *command)

    def _remove(self) -> None:
        removal = podman("rm", "--force", "--ignore", "--time", "0", self.name)
        subprocess.run(removal, check=True, capture_output=True)


def _limits() -> list[str]:
    """Modest ones: podman's own are more than it may set where it lacks rights itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=4096:4096"]
