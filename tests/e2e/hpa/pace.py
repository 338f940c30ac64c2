"""How fast a pod is. Apart from the worker, which takes seconds to import."""

STEP_S = 0.25
WORKER = "tests.e2e.hpa.paced.PacedWorker"
