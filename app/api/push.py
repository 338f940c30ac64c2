"""The short way of a stream: text that is rendered and sent at once, without a task."""

import json
import re
from typing import Protocol

from app.api.sse import encode

# One choice with a text and nothing else that is not null, as vllm renders it for completions and
# for chat.
_CHUNK = re.compile(
    r'(data: \{"id":.*?,"choices":\[\{"index":)(\d+)'
    r'(,"(?:text|delta":\{"content)":)"(?:[^"\\]|\\.)*"'
    r'(\}?(?:,"\w+":null)+\}\](?:,"\w+":null)*\})'
)

# A JSON string, as vllm writes it.
_string = json.encoder.encode_basestring


class Outlet(Protocol):
    """The server's side of an answer that is under way."""

    @property
    def free(self) -> bool:
        """Whether a piece of the body can be sent now, and at once."""

    def write(self, body: bytes) -> None:
        """Send a piece; only when it is free."""


class ShortWay:
    """Implements `app.engine.protocol.Channel` for one stream.

    Its pattern is the first chunk of the stream that has a text: what the handler renders for
    this request, everything but the text and the index of the choice.

    Attributes:
        empties: texts that are empty are sent too, as the handler does for this request.
        sending: the handler's chunk is on its way.

    """

    def __init__(self, outlet: Outlet) -> None:
        self.sending = False
        self._outlet = outlet
        self._closed = True
        self.empties = True
        self._pattern: tuple[str, bytes, bytes] | None = None
        self._heads: dict[int, bytes] = {}

    def open(self, *, empties: bool) -> None:
        """From now on it learns, and is used once it has learned."""
        self._closed, self.empties = False, empties

    def learn(self, sent: str) -> None:
        """Look at what the handler has made and the client was sent: one chunk or several."""
        if self._closed or self._pattern is not None:
            return
        last = sent.removesuffix("\n\n").rpartition("\n\n")[2]
        if (found := _CHUNK.fullmatch(last)) is not None:
            before, _, middle, after = found.groups()
            self._pattern = before, encode(middle), encode(f"{after}\n\n")

    def close(self) -> None:
        """Nothing is pushed from now on."""
        self._closed, self._pattern = True, None

    @property
    def free(self) -> bool:
        """Whether a text can be sent now, and in its order."""
        return self._pattern is not None and not self.sending and self._outlet.free

    def push(self, choice: int, text: str) -> None:
        """Send the next text of a choice; only when it is free."""
        assert self._pattern is not None
        before, middle, after = self._pattern
        head = self._heads.get(choice)
        if head is None:
            head = self._heads[choice] = encode(f"{before}{choice}") + middle
        self._outlet.write(head + encode(_string(text)) + after)
