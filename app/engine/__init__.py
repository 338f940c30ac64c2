"""The engine room: the only package that imports vllm.

The other rooms know it by `app.engine.protocol` and start it with `app.engine.loading`; neither
of the two imports vllm, which takes seconds, so that the port can be open meanwhile.
"""
