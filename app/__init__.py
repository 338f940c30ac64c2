"""Tidegate: vLLM behind a front door that tells the truth about its load."""

__version__ = "0.1.0"
