"""Alerts and dashboards: one source of each, and what is made of it for Kubernetes."""
