"""`python -m app keys`, and what the other commands say of a bad file."""

from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from app.__main__ import main
from app.auth.file import parse
from tests.rig.keys import ENTRY, PATH


@pytest.mark.parametrize(
    "name", ["alice", "on", "12", "a: b # c", "Jürgen", "x" * 100, "a b " * 24 + "c"]
)
def test_a_new_key_and_its_entry(capsys: pytest.CaptureFixture[str], name: str) -> None:
    made = []
    for _ in range(2):
        assert main(["keys", "--name", name]) == 0
        new, _, entry = capsys.readouterr().out.partition("\n")
        assert new.startswith("tg-")
        assert len(new) >= 40
        ring = parse(f"keys:\n{entry}", PATH)
        found = ring.find(new.encode())
        assert found is not None
        assert found.name == name
        assert new not in entry
        made.append(new)
    assert made[0] != made[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --name"),
        (["--name"], "argument --name: expected one argument"),
        (["--name", " x"], "name must be text of 1 to 100 printable characters"),
        (["--name="], "name must be text of 1 to 100 printable characters"),
        (["--name", "x", "--config", "y"], "unrecognized arguments: --config y"),
    ],
)
def test_a_bad_command_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["keys", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tidegate: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("command", [[], ["check"]], ids=["start", "check"])
@pytest.mark.parametrize("text", [None, "", ENTRY * 2], ids=["missing", "empty", "twins"])
def test_a_bad_file_stops_the_start_and_the_check(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
    text: str | None,
) -> None:
    # It is the whole process's.
    monkeypatch.setattr("app.__main__.configure", lambda settings: None)
    path = tmp_path / "keys.yaml"
    if text is not None:
        path.write_text(text)
    assert main([*command, f"--auth.keys_file={path}", "--server.ops_port=1"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("tidegate: ")
    assert str(path) in printed.err
    assert printed.err.count("\n") == 1


def test_the_entry_is_plain_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "--name", "alice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (entry,) = yaml.safe_load("\n".join(lines[1:]))
    assert entry == {"name": "alice", "sha256": sha256(lines[0].encode()).hexdigest()}
