"""The one error of this room, and the nearest valid name for a mistyped one."""

import difflib
from collections.abc import Iterable


class SettingsError(Exception):
    """A start that cannot go on: `str()` is one line that an operator can act on."""

    def __init__(
        self, reason: str, *, origin: str | None = None, suggestion: str | None = None
    ) -> None:
        self.origin = origin
        self.suggestion = suggestion
        line = reason
        if origin:
            line += f" ({origin})"
        if suggestion:
            line += f"; did you mean {suggestion}?"
        super().__init__(" ".join(line.split()))


def unknown_key(key: str, origin: str, candidates: Iterable[str]) -> SettingsError:
    """The error for a dotted key that does not exist.

    `candidates` are dotted keys too. The engine room uses this for the keys of `engine` and
    `frontend`, which only the installed vLLM can judge.
    """
    suggestion = nearest(key, candidates)
    if suggestion == key:
        # Only a file can do this: `server.port: 1` at its top level.
        return SettingsError(
            f"unknown key {key!r}: in a file, write the key below its group", origin=origin
        )
    return SettingsError(f"unknown key {key}", origin=origin, suggestion=suggestion)


def nearest(key: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant; None when nothing is close.

    The right name in the wrong group (`server.max_num_seqs`, or no group at all) beats a name
    that merely looks alike.
    """
    names = list(candidates)
    if key in names:
        return key
    last = _last(key)
    same_name = [name for name in names if _last(name) == last]
    matches = same_name or difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if matches:
        return matches[0]
    by_last = {_last(name): name for name in names}
    alike = difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.7)
    return by_last[alike[0]] if alike else None


def _last(key: str) -> str:
    return key.rpartition(".")[2]
