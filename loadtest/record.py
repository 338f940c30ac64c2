"""What is known of one request: times on the monotonic clock of the machine, in seconds.

i intended send, s send, f first chunk with text, l last such chunk, end of the answer
"""

import enum
from dataclasses import dataclass, field


class Outcome(enum.StrEnum):
    """How a request ended. Only `ok` is a success; only 429 and 503 are rejections."""

    OK = "ok"
    REJECTED = "rejected"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    CUT = "cut"
    WRONG_LENGTH = "wrong_length"
    ILLEGAL_FINISH = "illegal_finish"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


@dataclass
class Record:
    """One request of a plan and what became of it.

    Attributes:
        intended: when the plan wanted it sent.
        sent: when it was handed to the HTTP client, connecting included; None when it never was.
        first: its first chunk with text.
        last: its last chunk with text.
        ended: the end of the answer, good or bad.
        gaps: seconds between its chunks that bear tokens, and the tokens in each chunk after
            the first.
        output_tokens: from `usage`; from the chunks where the server gives none.
        chunk_tokens: counted from the chunks; None where they cannot be counted.

    """

    index: int
    tenant: str
    intended: float
    prompt_tokens_asked: int
    output_tokens_asked: int
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    gaps: list[tuple[float, int]] = field(default_factory=list)
    status: int | None = None
    outcome: Outcome = Outcome.CANCELLED
    detail: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    chunk_tokens: int | None = None
    retry_after_s: float | None = None
    request_id: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def ttft(self) -> float | None:
        """f − s, seconds."""
        return _minus(self.first, self.sent)

    @property
    def effective_ttft(self) -> float | None:
        """f − i, seconds: what the user waited, a late harness included."""
        return _minus(self.first, self.intended)

    @property
    def e2e(self) -> float | None:
        """l − s, seconds."""
        return _minus(self.last, self.sent)

    @property
    def effective_e2e(self) -> float | None:
        """l − i, seconds."""
        return _minus(self.last, self.intended)

    @property
    def tpot(self) -> float | None:
        """(l − f) / (n − 1), seconds per token, for n ≥ 2 output tokens."""
        span = _minus(self.last, self.first)
        n = self.output_tokens or 0
        return span / (n - 1) if span is not None and n >= 2 else None

    @property
    def send_lag(self) -> float | None:
        """s − i, seconds: how late the harness itself was."""
        return _minus(self.sent, self.intended)


def _minus(later: float | None, earlier: float | None) -> float | None:
    return later - earlier if later is not None and earlier is not None else None
