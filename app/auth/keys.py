"""API keys: what the service knows of them, which is never the key itself."""

import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_PREFIX: Final = "tg-"
_ENTROPY_BYTES: Final = 32

# Beyond this a sum of tokens would not be exact any more as a float.
_Limit = Annotated[int, Field(ge=1, le=10**12)]
_Model = Annotated[str, Field(min_length=1)]


def _printable(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError
    return name


class Key(BaseModel):
    """One key; the descriptions complete the sentence "… must be …".

    Attributes:
        name: whose it is, in logs and for fair share.
        sha256: of the key, in hexadecimal digits.
        max_concurrent: HTTP requests in flight.
        requests_per_minute: HTTP requests, of this process.
        tokens_per_minute: prompt and output tokens, of this process.
        priority: the most urgent that it may ask for; lower is more urgent.
        models: those that it may see and use; None: all.

    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_printable)] = Field(
        min_length=1, max_length=100, description="text of 1 to 100 printable characters"
    )
    sha256: str = Field(
        pattern=r"^[0-9a-fA-F]{64}$",
        repr=False,
        description="the sha256 of the key, 64 hexadecimal digits",
    )
    max_concurrent: _Limit | None = Field(default=None, description="a whole number above 0")
    requests_per_minute: _Limit | None = Field(default=None, description="a whole number above 0")
    tokens_per_minute: _Limit | None = Field(default=None, description="a whole number above 0")
    priority: int = Field(default=0, description="a whole number")
    models: Annotated[tuple[_Model, ...], Field(min_length=1)] | None = Field(
        default=None, strict=False, description="a list of one or more model names"
    )

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256)

    def clamp(self, priority: int) -> int:
        """The priority that a request gets which asks for `priority`."""
        return max(priority, self.priority)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Ring:
    """The keys that are in force; it never changes, another one takes its place."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        self._digests = [(key.digest, key) for key in self.keys]

    def find(self, presented: bytes) -> Key | None:
        """The key that was presented, in a time that does not tell which one came close."""
        digest = sha256(presented).digest()
        found: Key | None = None
        for known, key in self._digests:
            if hmac.compare_digest(known, digest):
                found = key
        return found


def new_key() -> str:
    """A key that nobody has seen yet."""
    return _PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)


def hash_of(key: str) -> str:
    """What the keys file has of a key."""
    return sha256(key.encode()).hexdigest()
