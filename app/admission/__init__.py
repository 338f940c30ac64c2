"""Admission: who is taken in, who waits, and in which order the engine gets them.

The door decides on a request before it costs anything; the gate hands sequences to the engine one
call at a time, so that the engine's own queue stays short and the order is decided here.
"""
