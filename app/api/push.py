"""The short way of a stream: text that is rendered and sent at once, without a task."""

import json
import re
from typing import Protocol

from starlette.types import Send

from app.api.sse import encode

# One choice with a text and nothing else that is not null, as vllm renders it for completions and
# for chat.
_CHUNK = re.compile(
    r'(data: \{"id":.*?,"choices":\[\{"index":)(\d+)'
    r'(,"(?:text|delta":\{"content)":)"(?:[^"\\]|\\.)*"'
    r'(\}?(?:,"\w+":null)+\}\](?:,"\w+":null)*\})'
)

# A JSON string, as vllm writes it.
_string = json.JSONEncoder(ensure_ascii=False).encode


class Flow(Protocol):
    """The server's view of how fast the client reads."""

    write_paused: bool


class ShortWay:
    """Implements `app.engine.protocol.Channel` for one stream.

    Its pattern is the first chunk of the stream that has a text: what the handler renders for
    this request, everything but the text and the index of the choice.

    Attributes:
        sending: the handler's chunk is on its way.

    """

    def __init__(self, send: Send, flow: Flow | None) -> None:
        self.sending = False
        self._send = send
        self._flow = flow
        self._closed = False
        self._pattern: tuple[str, bytes, bytes] | None = None
        self._heads: dict[int, bytes] = {}

    def learn(self, sent: str) -> None:
        """Look at what the handler has made and the client was sent: one chunk or several."""
        if self._pattern is not None:
            return
        last = sent.removesuffix("\n\n").rpartition("\n\n")[2]
        if (found := _CHUNK.fullmatch(last)) is not None:
            before, _, middle, after = found.groups()
            self._pattern = before, encode(middle), encode(f"{after}\n\n")

    def close(self) -> None:
        """Nothing is pushed from now on."""
        self._closed = True

    @property
    def free(self) -> bool:
        """Whether a text can be sent now, and in its order."""
        return not (
            self._closed
            or self.sending
            or self._pattern is None
            or self._flow is None
            or self._flow.write_paused
        )

    def push(self, choice: int, text: str) -> None:
        """Send the next text of a choice; only when it is free.

        Raises:
            RuntimeError: the server did not take it.

        """
        assert self._pattern is not None
        head = self._heads.get(choice)
        if head is None:
            before, middle, _ = self._pattern
            head = self._heads[choice] = encode(f"{before}{choice}") + middle
        body = head + encode(_string(text)) + self._pattern[2]
        sending = self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            # Sending waits for nothing but room in the transport, and there is some.
            sending.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            return
        sending.close()  # type: ignore[attr-defined]
        self.close()
        raise RuntimeError("the transport has no room, though it said so")
