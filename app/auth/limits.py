"""How much each key may use: requests in flight, requests and tokens per minute.

Requests and tokens flow back continuously, a minute's worth in a minute, and no more than that can
be saved up (a token bucket). What is kept is what was taken and has not flowed back: so a key that
nobody has seen has taken nothing, and another limit changes nothing of what was taken.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.auth.keys import Key
from app.errors import RateLimited, TidegateError

LIMIT_HEADERS: Final = tuple(
    f"x-ratelimit-{figure}-{what}"
    for what in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset")
)

_MINUTE_S: Final = 60.0
# Nobody knows when one of the requests in flight will end.
_CONCURRENT_RETRY_S: Final = 1.0
# What flows back is a sum of fractions: exactly enough must not be a little too few.
_ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Usage:
    """What a key has taken: requests in flight, and what has not yet flowed back."""

    running: int = 0
    requests: float = 0.0
    tokens: float = 0.0


def decide(key: Key, usage: Usage, tokens: int) -> RateLimited | None:
    """Why a request of `tokens` (0: it needs no engine) is refused; None when it fits."""
    if key.max_concurrent is not None and usage.running >= key.max_concurrent:
        return RateLimited(
            f"This API key may have {key.max_concurrent} requests in flight (max_concurrent); "
            "try again when one has ended.",
            _CONCURRENT_RETRY_S,
        )
    requests_s = wait_s(usage.requests, 1, key.requests_per_minute)
    need = reservation(key, tokens)
    tokens_s = wait_s(usage.tokens, need, key.tokens_per_minute)
    if tokens_s > requests_s:
        return RateLimited(
            f"This API key may use {key.tokens_per_minute} tokens per minute (tokens_per_minute), "
            f"and this request may take {need}; try again in {duration(tokens_s)}.",
            tokens_s,
        )
    if requests_s:
        return RateLimited(
            f"This API key may send {key.requests_per_minute} requests per minute "
            f"(requests_per_minute); try again in {duration(requests_s)}.",
            requests_s,
        )
    return None


def reservation(key: Key, tokens: int) -> int:
    """What a request takes before it is known what it uses: at most all, or it could never go."""
    return 0 if key.tokens_per_minute is None else min(tokens, key.tokens_per_minute)


def wait_s(used: float, need: int, per_minute: int | None) -> float:
    """Seconds until `need` fits; 0 when it does."""
    if per_minute is None or need == 0 or used + need <= per_minute + _ROUNDING:
        return 0.0
    return (used + need - per_minute) * _MINUTE_S / per_minute


def duration(seconds: float) -> str:
    """As in OpenAI's headers: `20ms`, `1s`, `6m0s`; rounded up to whole milliseconds.

    https://platform.openai.com/docs/guides/rate-limits
    """
    milliseconds = math.ceil(seconds * 1000 - _ROUNDING)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes_left = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if minutes:
        text = f"{minutes_left}m{text}"
    return f"{hours}h{text}" if hours else text


@dataclass
class Bucket:
    """What was taken of one limit and has not flowed back."""

    used: float = 0.0
    at: float = 0.0

    def flow(self, now: float, per_minute: int | None) -> None:
        """Let flow back what the time since the last call gives."""
        back = math.inf if per_minute is None else (now - self.at) * per_minute / _MINUTE_S
        self.used = max(0.0, self.used - back)
        self.at = now

    def take(self, amount: float) -> None:
        """Take more, or give something back."""
        self.used += amount

    def headers(self, name: str, per_minute: int) -> dict[str, str]:
        left = max(0, math.floor(per_minute - self.used + _ROUNDING))
        return {
            f"x-ratelimit-limit-{name}": str(per_minute),
            f"x-ratelimit-remaining-{name}": str(left),
            f"x-ratelimit-reset-{name}": duration(self.used * _MINUTE_S / per_minute),
        }


@dataclass
class Account:
    """One key's usage."""

    running: int = 0
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)

    def flow(self, key: Key, now: float) -> None:
        self.requests.flow(now, key.requests_per_minute)
        self.tokens.flow(now, key.tokens_per_minute)

    @property
    def usage(self) -> Usage:
        return Usage(self.running, self.requests.used, self.tokens.used)


class Spent(Protocol):
    """Tokens that a request has really used; a permit knows."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...


@dataclass
class Charge:
    """What one request is charged with; without a permit it was not accepted."""

    permit: Spent | None = None

    @property
    def tokens(self) -> int:
        return self.permit.prompt_tokens + self.permit.output_tokens if self.permit else 0


class Limiter:
    """The accounts of all keys, by name: they outlive a reload of the keys file.

    Lives on one event loop, takes no locks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def _account(self, key: Key) -> Account:
        account = self._accounts.setdefault(key.name, Account())
        account.flow(key, self._clock())
        return account

    @contextmanager
    def request(self, key: Key | None, tokens: int) -> Iterator[Charge]:
        """Reserve what a request may take; at the end, take what it has used.

        One that ends with advice to come back later was not served, and is not counted.

        Args:
            key: whose request it is; None: of nobody, and without limits.
            tokens: prompt and output, as far as known; 0: it needs no engine.

        Raises:
            RateLimited: it does not fit; nothing is taken.

        """
        if key is None:
            yield Charge()
            return
        account = self._account(key)
        refusal = decide(key, account.usage, tokens)
        if refusal is not None:
            raise refusal
        charge, reserved, counted = Charge(), reservation(key, tokens), 1
        account.running += 1
        account.requests.take(counted)
        account.tokens.take(reserved)
        try:
            yield charge
        except TidegateError as error:
            counted = 0 if error.retry_after_s is not None else 1
            raise
        finally:
            account = self._account(key)
            account.running -= 1
            account.requests.take(counted - 1)
            account.tokens.take(charge.tokens - reserved)

    def headers(self, key: Key) -> dict[str, str]:
        """The state of those of a key's limits that it has, as OpenAI's clients read it."""
        account = self._account(key)
        headers: dict[str, str] = {}
        if key.requests_per_minute is not None:
            headers |= account.requests.headers("requests", key.requests_per_minute)
        if key.tokens_per_minute is not None:
            headers |= account.tokens.headers("tokens", key.tokens_per_minute)
        return headers
