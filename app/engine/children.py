"""What each of the engine's processes does for us, before anything else.

They are vllm's, and the one thing of ours that vllm has each of them load is the logging
configuration, first of all: a filter in it is made here.
"""

import os
import sys

from app.engine.failures import StartFailures, Stderr
from app.engine.orphans import end_with_parent


def prepare(file: str, service: int) -> StartFailures:
    """Prepare this process; once is enough.

    Args:
        file: where it notes why it did not start.
        service: the number of the service's own process, which loads the configuration too.

    Returns:
        The filter of the log handler.

    """
    if os.getpid() != service and not isinstance(sys.stderr, Stderr):
        sys.stderr = Stderr(sys.stderr)
        end_with_parent()
    return StartFailures(file)
