"""The file changes while the service runs."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.auth.keyring import Keyring, changes
from app.auth.keys import Ring
from tests.rig.keys import ENTRY, OTHER, Mounted, key
from tests.rig.streams import until


async def in_thread(work: Any) -> Any:
    return await asyncio.to_thread(work)


@contextmanager
def watched(keyring: Keyring) -> Iterator[None]:
    task = asyncio.ensure_future(keyring.watch(in_thread, 0.01))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


def names(keyring: Keyring) -> list[str]:
    return [found.name for found in keyring.ring.keys]


def log_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "app.auth.keyring"]


async def test_a_swapped_secret_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    mounted = Mounted(tmp_path)
    mounted.swap(ENTRY)
    keyring = Keyring(mounted.path)
    with watched(keyring):
        mounted.swap(f"{ENTRY}- name: bob\n  sha256: {OTHER}\n")
        await until(lambda: names(keyring) == ["alice", "bob"])
        mounted.swap(f"- name: bob\n  sha256: {OTHER}\n  priority: 1\n")
        await until(lambda: names(keyring) == ["bob"])
        assert not keyring.failed
    assert log_of(caplog) == [
        ("INFO", "keys file reloaded: 1 added, 0 removed, 0 changed, 2 in force"),
        ("INFO", "keys file reloaded: 0 added, 1 removed, 1 changed, 1 in force"),
    ]


async def test_a_broken_or_missing_file_leaves_the_old_keys_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys.yaml"
    path.write_text(ENTRY)
    keyring = Keyring(path)
    ring = keyring.ring
    with watched(keyring):
        path.write_text(ENTRY.replace("sha256", "sha265"))
        await until(lambda: keyring.failed)
        await asyncio.sleep(0.1)
        path.unlink()
        await until(lambda: len(log_of(caplog)) == 2)
        assert keyring.ring is ring
        assert keyring.failed
        path.write_text(ENTRY)
        await until(lambda: not keyring.failed)
        assert keyring.ring is ring
        path.write_text("")
        await until(lambda: keyring.failed)
        path.write_text(ENTRY + "  priority: 1")
        await until(lambda: not keyring.failed)
    prefix = "keys file not usable, the old keys stay in force"
    logged = [entry for entry in log_of(caplog) if "no key in the file" not in entry[1]]
    assert logged == [
        (
            "ERROR",
            f"{prefix}: key 'alice': unknown field sha265 ({path} line 1); did you mean sha256?",
        ),
        ("ERROR", f"{prefix}: {path}: no such file (auth.keys_file)"),
        ("INFO", "keys file mended: it is again what it was"),
        ("INFO", "keys file reloaded: 0 added, 0 removed, 1 changed, 1 in force"),
    ]


async def test_watching_goes_on_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(ENTRY)
    keyring = Keyring(path)
    with watched(keyring), monkeypatch.context() as patch:
        patch.setattr("app.auth.keyring.read", lambda path: 1 / 0)
        await until(lambda: keyring.failed)
        assert log_of(caplog)[0][1].endswith(f"{path}: ZeroDivisionError")
        patch.undo()
        await until(lambda: not keyring.failed)


def test_changes_are_told_in_numbers() -> None:
    one, two = Ring([key()]), Ring([key(priority=1), key(name="bob", sha256=OTHER)])
    assert changes(one, two) == "1 added, 0 removed, 1 changed, 2 in force"
