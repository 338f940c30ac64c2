"""Reads server-sent events from bytes, however they were cut into pieces."""


class Decoder:
    """Bytes in, the data of whole events out. Lines end in LF or CRLF."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are complete with this piece; comments and other fields are skipped."""
        self._buffer += piece
        *lines, self._buffer = self._buffer.replace(b"\r\n", b"\n").split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            event, self._data = b"\n".join(self._data), []
            return event or None
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        return None

    @property
    def unfinished(self) -> bool:
        """Whether the stream ended in the middle of an event."""
        return bool(self._buffer or self._data)
