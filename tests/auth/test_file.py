"""What a keys file may say, and how one is told what is wrong with it."""

from pathlib import Path
from textwrap import indent

import pytest

from app.auth.file import parse, read
from app.settings import SettingsError
from tests.rig.keys import ENTRY, HASH, OTHER, PATH, key


@pytest.mark.parametrize(
    "text", [f"keys:\n{ENTRY}", ENTRY, "keys:\n" + indent(ENTRY, "  "), f"\ufeff---\n{ENTRY}"]
)
def test_a_list_below_keys_or_alone(text: str) -> None:
    assert parse(text, PATH).keys == (key(),)


def test_every_field() -> None:
    text = f"""
keys:
  - name: alice
    sha256: {HASH.upper()}
    max_concurrent: 4
    requests_per_minute: 60
    tokens_per_minute: 100000
    priority: -1
    models: [a, org/b]
  - {{name: "Bob & Söhne", sha256: {OTHER}, priority: null, models: null}}
"""
    alice, bob = parse(text, PATH).keys
    assert (alice.digest.hex(), alice.max_concurrent, alice.requests_per_minute) == (HASH, 4, 60)
    assert (alice.tokens_per_minute, alice.priority) == (100_000, -1)
    assert alice.models == ("a", "org/b")
    assert (bob.name, bob.priority, bob.models, bob.max_concurrent) == (
        "Bob & Söhne",
        0,
        None,
        None,
    )


SECRET = "tg-hunter2"
SHA256 = "the sha256 of the key, 64 hexadecimal digits"
UNKNOWN = "unknown field request_per_minute"
FIELDS = "name, sha256, max_concurrent, requests_per_minute, tokens_per_minute, priority, models"
BAD_FILES = [
    ("", "there is no key in the file (keys.yaml)"),
    ("# nothing\n", "there is no key in the file (keys.yaml)"),
    ("keys:", "there is no key in the file (keys.yaml)"),
    ("keys: []", "there is no key in the file (keys.yaml)"),
    (SECRET, "the file must have a list of keys below `keys:` (keys.yaml)"),
    (f"keys: {{a: {SECRET}}}", "the file must have a list of keys below `keys:` (keys.yaml)"),
    (
        f"\n{SECRET}: alice",
        "the file may have `keys:` at its top, and nothing beside it (keys.yaml line 2)",
    ),
    (
        f"? [{SECRET}]\n: 1",
        "the file may have `keys:` at its top, and nothing beside it (keys.yaml line 1)",
    ),
    ("keys: []\nkeys: []", "not valid YAML: key 'keys' is given twice (keys.yaml line 2)"),
    ("- [a", "not valid YAML: expected ',' or ']', but got '<stream end>' (keys.yaml line 1)"),
    (f"- name: *{SECRET}", "not valid YAML: found undefined alias (keys.yaml line 1)"),
    (f"- {SECRET}", "entry 1: must be a mapping with name and sha256 (keys.yaml line 1)"),
    ("- {}", "entry 1: name is missing (keys.yaml line 1)"),
    (f"- sha256: {HASH}", "entry 1: name is missing (keys.yaml line 1)"),
    (ENTRY + "- name: bob", "key 'bob': sha256 is missing (keys.yaml line 3)"),
    (
        ENTRY + f"- name: bob\n  sha256: {SECRET}",
        f"key 'bob': sha256 must be {SHA256} (keys.yaml line 3)",
    ),
    (
        ENTRY + f"- name: bob\n  sha256: {OTHER}0",
        f"key 'bob': sha256 must be {SHA256} (keys.yaml line 3)",
    ),
    (
        ENTRY.replace("alice", "5"),
        "entry 1: name must be text of 1 to 100 printable characters (keys.yaml line 1)",
    ),
    (
        ENTRY.replace("alice", '"a\\tb"'),
        r"key 'a\tb': name must be text of 1 to 100 printable characters (keys.yaml line 1)",
    ),
    (
        ENTRY.replace("alice", "a" * 101),
        "entry 1: name must be text of 1 to 100 printable characters (keys.yaml line 1)",
    ),
    (
        ENTRY + "  request_per_minute: 5",
        f"key 'alice': {UNKNOWN} (keys.yaml line 1); did you mean requests_per_minute?",
    ),
    (
        ENTRY + f"  {SECRET}: 5",
        f"key 'alice': may have the fields {FIELDS} only (keys.yaml line 1)",
    ),
    (
        ENTRY + "  name: x",
        "not valid YAML: key 'name' is given twice (keys.yaml line 3)",
    ),
    (
        ENTRY + f"- name: alice\n  sha256: {OTHER}",
        "key 'alice': the name is taken (keys.yaml line 1) (keys.yaml line 3)",
    ),
    (
        ENTRY + f"- name: bob\n  sha256: {HASH.upper()}",
        "key 'bob': the sha256 is also that of key 'alice' (keys.yaml line 3)",
    ),
    *(
        (
            ENTRY + f"  {field}: {value}",
            f"key 'alice': {field} must be a whole number above 0 (keys.yaml line 1)",
        )
        for field in ("max_concurrent", "requests_per_minute", "tokens_per_minute")
        for value in ("0", "-1", "1.5", "'5'", "true", "[5]", "many", "9" * 30)
    ),
    *(
        (
            ENTRY + f"  priority: {value}",
            "key 'alice': priority must be a whole number (keys.yaml line 1)",
        )
        for value in ("high", "1.0", "true", "[1]")
    ),
    *(
        (
            ENTRY + f"  models: {value}",
            "key 'alice': models must be a list of one or more model names (keys.yaml line 1)",
        )
        for value in ("tiny", "[]", "[1]", "['']", "{a: b}")
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_bad_file_is_one_line_that_says_where_and_shows_no_value(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(text, PATH)
    assert str(raised.value) == message
    assert SECRET not in str(raised.value)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"keys: \xff")
    for path, reason in [
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a directory, not a file"),
        (tmp_path / "latin", "is not UTF-8 text, at byte 6"),
        (Path("\0"), "is not a file name"),
        (tmp_path / "latin" / "x", "cannot be read: Not a directory"),
    ]:
        with pytest.raises(SettingsError) as raised:
            read(path)
        assert str(raised.value) == f"{path}: {reason} (auth.keys_file)"
