"""A worker whose steps take their time, so that what binds a pod is its slots.

Several engines share the cores of one machine: at full speed they would take each other's time, and
one more pod would add nothing. Used by its name, as `engine.worker_cls`.
"""

import time
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from tests.e2e.hpa.pace import STEP_S


class PacedWorker(CPUWorker):
    """A step that computes something ends no sooner than `STEP_S` after its beginning."""

    def execute_model(self, scheduler_output: Any) -> Any:
        began = time.monotonic()
        output = super().execute_model(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens:
            time.sleep(max(0.0, began + STEP_S - time.monotonic()))
        return output
