"""The simulator and capacity planner: engine, front door, replicas and autoscaler as models."""
