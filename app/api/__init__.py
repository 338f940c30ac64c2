"""The HTTP room: thin routes over the engine, with one error shape and one request context."""
