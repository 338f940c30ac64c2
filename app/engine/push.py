"""Output that goes from the engine's output loop straight into its stream.

vllm's handlers render the first output of a stream, and its last; what lies between says nothing
new but the text. So once the first chunk is out, the sequence's `make_request_output`, which the
output loop calls, hands the text to the stream's channel at once: no task is woken, nothing is
queued, no output objects are made. While the front end is busy a text may wait for the next ones
(`app/engine/coalesce.py`) until all of them can go. Whenever the channel is not free (a client that
reads slowly) and no text waits, the output takes the usual way, and so does the last one, with all
token ids that were left out, so that the handler's counts are right.
"""

import argparse
import logging
from contextvars import ContextVar
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.abstract_parser import DelegatingParser, Parser
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState

from app.engine.coalesce import Coalescer
from app.engine.protocol import Call, Channel, Operation
from app.engine.relay import KEPT, has_no_stops, states_of
from app.permit import Dispatch

CHARGED_TOGETHER = 8
"""Tokens: fair share is about hundreds."""

logger = logging.getLogger(__name__)

current_channel: ContextVar[Channel | None] = ContextVar("current_channel", default=None)


def is_plain(call: Call, args: argparse.Namespace, parser: type[Parser] | None) -> bool:
    """Whether each chunk of a stream but the first and the last says nothing but its text.

    Args:
        call: any.
        args: vllm's arguments.
        parser: what reads the answers of chats.

    """
    if call.operation not in (Operation.COMPLETIONS, Operation.CHAT):
        return False
    request = call.request
    if not getattr(request, "stream", False) or request.use_beam_search:
        return False
    if request.return_token_ids or args.enable_log_outputs or args.sse_keep_alive_interval > 0:
        return False
    options = request.stream_options
    if args.enable_force_include_usage or (options and options.continuous_usage_stats):
        return False
    if call.operation is Operation.COMPLETIONS:
        # A choice's first output may be pushed, and the handler would add the prompt to its last.
        echoes = request.echo and call.sequences > 1
        return request.logprobs is None and call.sequences == (request.n or 1) and not echoes
    return not request.logprobs and (parser is None or _passes_on(parser, request))


def _passes_on(parser: type[Parser], request: ChatCompletionRequest) -> bool:
    """Whether a parser makes of each text a delta with that text: no tools, no thoughts."""
    return (
        parser.parse_delta is DelegatingParser.parse_delta
        and parser.reasoning_parser_cls is None
        and request.tool_choice == "none"
        and not getattr(parser.tool_parser_cls, "engine_based_streaming", False)
    )


def attach(
    processor: OutputProcessor,
    request_id: str,
    collector: RequestOutputCollector,
    channel: Channel,
    dispatch: Dispatch,
    coalescer: Coalescer,
) -> None:
    """Have the outputs of a call that was just added pushed.

    Args:
        processor: where its sequences are.
        request_id: of the call.
        collector: where the usual way begins.
        channel: where the short one ends.
        dispatch: where tokens are counted.
        coalescer: holds texts back.

    """
    for state in states_of(processor, request_id):
        if state.output_kind == RequestOutputKind.DELTA and state.stream_interval == 1:
            pusher = Pusher(state, collector, channel, dispatch, coalescer)
            state.make_request_output = pusher
            if has_no_stops(state):
                state.taker = pusher


class _Guard:
    """Whatever goes wrong ends one request, and not the output loop with all of them."""

    def __init__(self, collector: RequestOutputCollector) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.error("output could not be pushed", exc_info=error)
        self._collector.put(error)
        return True


class Pusher:
    """In the place of one sequence's `make_request_output`, and its taker.

    Attributes:
        kept: tokens that wait with their text, which is not made yet.

    """

    def __init__(
        self,
        state: RequestState,
        collector: RequestOutputCollector,
        channel: Channel,
        dispatch: Dispatch,
        coalescer: Coalescer,
    ) -> None:
        self._state = state
        self._make = state.make_request_output
        self._detokenizer = state.detokenizer
        self._choice = state.request_index
        self._collector = collector
        self._channel = channel
        self._dispatch = dispatch
        self._coalescer = coalescer
        self._guard = _Guard(collector)
        self._pushed: list[int] = []
        self._charged = 0
        self._held = self._due = self._spoke = False
        self.kept: list[int] = []

    def __call__(
        self,
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        *transfer: Any,
        **more: Any,
    ) -> Any:
        if finish_reason is None and self._free:
            with self._guard:
                if self._holds():
                    self._due = True
                else:
                    self._send()
                self._advance(new_token_ids)
            return None
        if finish_reason is not None:
            # Or the two would hold each other until the garbage collector comes.
            vars(self._state).pop("make_request_output", None)
            vars(self._state).pop("taker", None)
        # What is held goes with it, and the handler's output charges for what was not.
        self.give_back()
        self._held, self._charged = False, 0
        if self._pushed:
            new_token_ids, self._pushed = [*self._pushed, *new_token_ids], []
        return self._make(
            new_token_ids, pooling_output, finish_reason, stop_reason, *transfer, **more
        )

    def take(self, token_ids: list[int]) -> bool:
        """Push further tokens of a sequence that no text can end, if they can be."""
        # What waits already waits until it is flushed, whatever is in its way by then.
        if not self._held:
            if not self._free:
                return False
            if not self._holds():
                with self._guard:
                    self._read(token_ids)
                    self._send()
                    self._advance(token_ids)
                return True
        self.kept += token_ids
        self._due = True
        if len(self.kept) >= KEPT:  # another choice of a client that does not read
            self.give_back()
        return True

    def give_back(self) -> None:
        """Let vllm's detokenizer see what was kept; its text, and its charge, go with the next."""
        if self.kept:
            kept, self.kept = self.kept, []
            self._pushed += kept
            with self._guard:
                self._read(kept)

    def flush(self) -> bool:
        """Send what is held; false when it is to be called again.

        That is when nothing can be sent now, or for the tokens to come: a stream that had some, in
        a time when texts are held, has more of them, and they need not ask.
        """
        if self._held and not self._due:
            self._held = False
        elif self._held and self._free:
            self._held, self._due = bool(self.kept) and self._coalescer.holding, False
            self.give_back()
            with self._guard:
                self._send()
                self._advance([])
        # After a failure nothing more is sent but the failure.
        return not self._held or self._dispatch.permit.failure is not None

    def _holds(self) -> bool:
        """Whether the next text waits for more.

        The first one is what the client waits for, and the handler's chunk may have had none.
        """
        self._held = self._held or (self._spoke and self._coalescer.holds(self))
        return self._held

    def _read(self, token_ids: list[int]) -> None:
        """What the detokenizer's `update` does where no text is looked for."""
        detokenizer = self._detokenizer
        for token_id in token_ids:
            detokenizer.token_ids.append(token_id)
            detokenizer.output_text += detokenizer.decode_next(token_id)

    def _send(self) -> None:
        """Send the text that is there."""
        text = self._detokenizer.get_next_output_text(False, True)
        if text or self._channel.empties:
            self._channel.push(self._choice, text)
        self._spoke = self._spoke or bool(text)

    def _advance(self, token_ids: list[int]) -> None:
        """Note tokens that went to the client, or will before the next output is there."""
        self._pushed += token_ids
        if (ahead := len(self._pushed) - self._charged) >= CHARGED_TOGETHER:
            self._charged += ahead
            self._dispatch.ahead(self._choice, ahead)

    @property
    def _free(self) -> bool:
        """Whether the next text comes next: nothing waits before it, nothing has ended all."""
        return (
            self._collector.output is None
            and self._dispatch.permit.failure is None
            and self._channel.free
        )
