"""Keys for tests, and a Secret as Kubernetes mounts it into a directory."""

import os
from pathlib import Path
from typing import Any

from app.auth.keys import Key, hash_of

PATH = Path("keys.yaml")
HASH = hash_of("alice's")
OTHER = hash_of("bob's")
ENTRY = f"- name: alice\n  sha256: {HASH}\n"


def key(**fields: Any) -> Key:
    """Alice's, if nothing else is said."""
    return Key.model_validate({"name": "alice", "sha256": HASH, **fields})


class Mounted:
    """Files are links through `..data`, which is swapped for another directory at each change."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "keys.yaml"
        self.generation = 0

    def swap(self, text: str) -> None:
        self.generation += 1
        real = self.directory / f"..{self.generation}"
        real.mkdir()
        (real / "keys.yaml").write_text(text, encoding="utf-8")
        link = self.directory / "..data_tmp"
        link.symlink_to(real.name)
        os.replace(link, self.directory / "..data")  # noqa: PTH105 - what the kubelet calls
        if not self.path.is_symlink():
            self.path.symlink_to("..data/keys.yaml")
