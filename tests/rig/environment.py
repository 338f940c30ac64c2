"""What engines and services that run in the tests' process leave in its environment."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment_kept() -> Iterator[None]:
    """At the end it is what it was."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def forget_services() -> None:
    """What a service that ran in the tests' process has told vllm is over with it."""
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        del os.environ[name]
    if (envs := sys.modules.get("vllm.envs")) is not None:
        envs.disable_envs_cache()
