"""The embedded model: one real conversion, and what happens around it with a quick stand-in."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer

from app import embedded

ROOT = Path(__file__).parents[1]
QUICK_FILES = {"config.json": "{}", "model.safetensors": "weights"}


class Conversions(list[Path]):
    """A stand-in for the conversion that notes where it was asked to write."""

    def __call__(self, source: Path, target: Path) -> None:
        """Write two small files."""
        assert source.name == embedded.GGUF_FILE
        self.append(target)
        for name, text in QUICK_FILES.items():
            (target / name).write_text(text)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Conversions:
    quick = Conversions()
    monkeypatch.setattr(embedded, "_convert", quick)
    return quick


def test_lies_under_the_users_cache_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below = Path("tidegate", "models", embedded.SERVED_NAME)
    assert embedded.model_dir() == tmp_path / ".cache" / below
    assert embedded.model_dir(tmp_path / "other") == tmp_path / "other" / below


def test_is_made_once(conversions: Conversions, tmp_path: Path) -> None:
    directory = embedded.ensure(tmp_path)
    assert embedded.verify(directory)
    assert embedded.ensure(tmp_path) == directory
    assert len(conversions) == 1


def test_leaves_only_the_model_and_the_lock_behind(
    conversions: Conversions, tmp_path: Path
) -> None:
    directory = embedded.ensure(tmp_path)
    beside = {path.name for path in directory.parent.iterdir()}
    assert beside == {directory.name, f".{directory.name}.lock"}


def _truncate(directory: Path) -> None:
    (directory / "model.safetensors").write_text("weigh")


def _flip_a_byte(directory: Path) -> None:
    (directory / "model.safetensors").write_text("weighty")


def _lose_a_file(directory: Path) -> None:
    (directory / "config.json").unlink()


def _lose_the_manifest(directory: Path) -> None:
    (directory / embedded.MANIFEST).unlink()


def _garble_the_manifest(directory: Path) -> None:
    (directory / embedded.MANIFEST).write_bytes(b'{"format": 1, "files": {"config.json": [2')


def _age_the_manifest(directory: Path) -> None:
    path = directory / embedded.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": embedded.FORMAT - 1}))


def _put_a_directory_in_place_of_a_file(directory: Path) -> None:
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _flip_a_byte,
        _lose_a_file,
        _lose_the_manifest,
        _garble_the_manifest,
        _age_the_manifest,
        _put_a_directory_in_place_of_a_file,
    ],
)
def test_a_damaged_one_is_made_again(
    conversions: Conversions, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    directory = embedded.ensure(tmp_path)
    damage(directory)
    assert not embedded.verify(directory)
    embedded.ensure(tmp_path)
    assert embedded.verify(directory)
    assert len(conversions) == 2


def test_what_an_interrupted_build_left_is_removed(
    conversions: Conversions, tmp_path: Path
) -> None:
    models = embedded.model_dir(tmp_path).parent
    half = models / f".{embedded.SERVED_NAME}.tmp-killed" / "new"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    embedded.ensure(tmp_path)
    assert not half.parent.exists()


def test_builders_at_once_build_once(conversions: Conversions, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        directories = set(pool.map(embedded.ensure, [tmp_path] * 4))
    assert len(conversions) == 1
    assert all(embedded.verify(directory) for directory in directories)


def test_a_failed_conversion_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    not_a_model = tmp_path / "model.gguf"
    not_a_model.write_text("no model")
    monkeypatch.setattr(embedded, "_source", lambda: not_a_model)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(embedded.EmbeddedModelError, match="could not be converted"):
        embedded.ensure(tmp_path)
    directory = embedded.model_dir(tmp_path)
    assert [path.name for path in directory.parent.iterdir()] == [f".{directory.name}.lock"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no-such-package")
    with pytest.raises(embedded.EmbeddedModelError, match="no-such-package"):
        embedded.ensure(tmp_path)


def test_the_command_prints_the_directory(
    conversions: Conversions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys, "argv", ["embedded", "--cache", str(tmp_path)])
    embedded.main()
    printed = capsys.readouterr()
    assert printed.out == f"{embedded.model_dir(tmp_path)}\n"
    assert "ready" in printed.err


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real conversion, asked for by two processes at once while a third holds the lock."""
    cache = tmp_path_factory.mktemp("cache")
    directory = embedded.model_dir(cache)
    directory.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "app.embedded", "--cache", str(cache)]
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [
            subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)
        ]
        # Each says that it waits before it can have begun.
        first_lines = [process.stderr.readline() for process in both if process.stderr]
    logs = [process.communicate(timeout=240)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("waiting" in line for line in first_lines)
    assert sum("preparing the embedded model in" in log for log in logs) == 1
    return directory


@pytest.mark.slow
def test_the_real_one_is_what_vllm_loads(converted: Path) -> None:
    assert embedded.verify(converted)
    config = json.loads((converted / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    generation = json.loads((converted / "generation_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.token_to_id("<|im_end|>") == generation["eos_token_id"]
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in converted.iterdir())


@pytest.mark.slow
def test_the_real_template_has_chatml_roles(converted: Path) -> None:
    template = jinja2.Template((converted / "chat_template.jinja").read_text())
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("in 2026", ["in", "Ġ", "2", "0", "2", "6"]),
        ("a  1", ["a", "ĠĠ", "1"]),
        ("<|im_start|>user", ["<|im_start|>", "user"]),
    ],
)
def test_the_real_tokenizer_splits_digits(converted: Path, text: str, tokens: list[str]) -> None:
    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert encoding.tokens == tokens
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text


@pytest.mark.slow
def test_a_half_written_real_one_is_noticed(converted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(converted, copy)
    weights = copy / "model.safetensors"
    assert embedded.verify(copy)
    os.truncate(weights, weights.stat().st_size // 2)
    assert not embedded.verify(copy)
