"""A load-test harness for OpenAI-compatible servers that cannot fool its user.

It imports nothing of the service that it measures.
"""
