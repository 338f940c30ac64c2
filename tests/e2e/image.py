"""The CPU image, built and run: `python -m tests.e2e.image`, or `make e2e-image`.

As root on Debian. It builds the image from nothing (deploy/image.sh) and runs it with a read-only
root and without any rights, the embedded model mounted: answers, gauges, a stream that `podman
stop` does not cut, another user's number, what is said without a model. Sizes and times are
printed; when something is not as it should be, the last line says what, and the status is 1.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from app import embedded
from tests.rig.container import Container, output_of, podman
from tests.rig.server import ROOT, ServerError
from tests.rig.streams import hold

GAUGES = ("vllm_pending_requests", "vllm_running_requests", "vllm_kv_cache_usage_percent")
DEMO = ("--config", "config/cpu-demo.yaml")
STREAM_TOKENS = 200
GRACE_S = 150
"""What a cluster gives: more than the settling, the drain and the engine's end together."""

Figures = list[tuple[str, str]]


def expect(truth: bool, what: str) -> None:
    """Raises ServerError when it is not so."""
    if not truth:
        raise ServerError(f"not so: {what}")
    print(f"  ok  {what}", flush=True)


@contextmanager
def timed(figures: Figures, what: str) -> Iterator[None]:
    """A line of the table: how long the block took."""
    began = time.monotonic()
    yield
    figures.append((what, f"{time.monotonic() - began:.0f} s"))


def build(figures: Figures) -> str:
    """The name of the image; what an earlier run has made of it is kept."""
    with timed(figures, "build"):
        done = subprocess.run(["deploy/image.sh"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    image = done.stdout.decode().strip()
    (facts,) = json.loads(output_of("image", "inspect", image))
    figures.append(("image, not compressed", megabytes(facts["Size"])))
    layers = json.loads(output_of("history", "--format", "json", image))
    figures += [(named(layer), megabytes(layer["size"])) for layer in layers if layer["size"]]
    return image


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def named(layer: Mapping[str, str]) -> str:
    """By the start of the instruction that made it, without sums."""
    made_by = layer["CreatedBy"].removeprefix("/bin/sh -c ").removeprefix("#(nop) ")
    return f"  of it {re.sub(r'(dir|file):[0-9a-f]+ ', '', made_by).strip()[:40]}"


class Rig:
    """Containers of one image, with the embedded model and a cache of their own."""

    def __init__(self, image: str, directory: Path, figures: Figures) -> None:
        self.image = image
        self.model = embedded.ensure()
        self.directory = directory
        self.figures = figures

    def container(self, name: str, *options: str) -> Container:
        """One that is not started yet."""
        cache = self.directory / name
        cache.mkdir()
        cache.chmod(0o775)  # root's, and group 0's
        settings = {
            "TIDEGATE_ENGINE__MODEL": "/model",
            "TIDEGATE_ENGINE__SERVED_MODEL_NAME": embedded.SERVED_NAME,
        }
        return Container(
            self.image,
            self.directory / f"{name}.log",
            mounts=[(self.model, "/model:ro"), (cache, "/cache")],
            settings=settings,
            options=options,
            arguments=DEMO,
        )

    @contextmanager
    def serving(self, name: str, *options: str) -> Iterator[Container]:
        """One that is ready."""
        print(f"{name}:", flush=True)
        container = self.container(name, *options)
        try:
            with timed(self.figures, f"from `podman run` to ready, {name}"):
                container.start()
                container.wait_ready(600)
            yield container
        finally:
            container.close()


def is_confined(container: Container) -> None:
    """It has no rights, and nothing of the image can be written to."""
    status = dict(line.split(":") for line in container.run("cat", "/proc/1/status").splitlines())
    uid, gid = status["Uid"].split()[0], status["Gid"].split()[0]
    expect(uid != "0", f"runs as {uid}:{gid}")
    expect(int(status["CapBnd"], 16) == 0, "can have no capability")
    expect(int(status["NoNewPrivs"]) == 1, "can gain no privilege")
    try:
        container.run("touch", "/opt/tidegate/new")
    except subprocess.CalledProcessError as error:
        expect("Read-only file system" in error.stderr, "its root is read-only")
    else:
        expect(False, "its root is read-only")


def answers(container: Container) -> None:
    """A completion by the `openai` client, and the gauges."""
    answer = container.openai().chat.completions.create(
        model=embedded.SERVED_NAME,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
    )
    text = answer.choices[0].message.content or ""
    expect("Paris" in text, f"answers: {text!r}")
    values = {name: container.metric(name) for name in GAUGES}
    expect(values == dict.fromkeys(GAUGES, 0.0), f"gauges are there: {', '.join(values)}")


def stops_without_a_cut(container: Container, command: Sequence[str]) -> None:
    """What ends the container lets a stream that has begun end as it should."""
    expect(
        asyncio.run(goes_on(container, command)),
        f"a stream of {STREAM_TOKENS} tokens ran on to `data: [DONE]`",
    )
    expect(container.wait(30) == 0, "its status is 0")


async def goes_on(container: Container, command: Sequence[str]) -> bool:
    """Whether a stream is complete, and most of it came after the command had begun."""
    name, usage = embedded.SERVED_NAME, {"include_usage": True}
    streams = hold(container, 1, max_tokens=STREAM_TOKENS, model=name, stream_options=usage)
    async with streams as held:
        (stream,) = held
        ending = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        await asyncio.sleep(1.0)
        before = len(stream.data)
        await held.finish(GRACE_S)
        await asyncio.wait_for(ending.wait(), GRACE_S)
    tokens = stream.events()[-1]["usage"]["completion_tokens"]
    return stream.complete and tokens == STREAM_TOKENS and len(stream.data) > 2 * before


def says_what_is_missing(rig: Rig) -> None:
    """Without a model, the last line of the log and the status tell."""
    print("no model:", flush=True)
    with_no_model = Container(rig.image, rig.directory / "no-model.log", options=["--tmpfs=/cache"])
    try:
        with_no_model.start()
        status = with_no_model.wait(120)
        message = with_no_model.log_lines()[-1]["message"]
    finally:
        with_no_model.close()
    expect(status == 1, "its status is 1")
    expect("no engine.model is set" in message, f"says: {message}")


def look(directory: Path, figures: Figures) -> None:
    """All of it, in order. Raises AssertionError or CalledProcessError."""
    rig = Rig(build(figures), directory, figures)
    with rig.serving("the image's user") as container:
        is_confined(container)
        answers(container)
        stop = podman("stop", f"--time={GRACE_S}", container.name)
        stops_without_a_cut(container, stop)
    with rig.serving("any user of group 0", "--user=12345:0") as container:
        is_confined(container)
        answers(container)
        drain = podman("exec", container.name, "python", "-m", "app", "drain")  # in a preStop hook
        stops_without_a_cut(container, drain)
    says_what_is_missing(rig)


def main() -> int:
    figures: Figures = []
    try:
        with tempfile.TemporaryDirectory() as directory:
            look(Path(directory), figures)
    except (AssertionError, subprocess.CalledProcessError) as error:
        print(f"tidegate: {error}", file=sys.stderr)
        return 1
    width = max(len(name) for name, _ in figures)
    print("\n".join(f"{name:{width}}  {value:>8}" for name, value in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
