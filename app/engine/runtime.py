"""Builds the engine and answers calls with it."""

import argparse
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import psutil
import pydantic
from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import propagate_flash_late_interaction
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.sse_keep_alive import with_sse_keep_alive
from vllm.envs import disable_envs_cache, enable_envs_cache
from vllm.exceptions import VLLMError
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.async_utils import cancel_task_threadsafe

from app import embedded
from app.engine import environment, fields
from app.engine.arguments import parse_arguments
from app.engine.llm import GatedLLM
from app.engine.operations import SPECS, describe, misfit
from app.engine.processes import end, engine_processes
from app.engine.protocol import Call, Channel, Document, Operation, Stream
from app.engine.push import current_channel, is_plain
from app.engine.stats import SeriesLogger, StatsRecorder, combine
from app.engine.steps import StepLog, without_lines
from app.engine.translate import from_response, from_validation, translate
from app.errors import (
    ContextLengthExceeded,
    InvalidJson,
    InvalidValue,
    ModelNotFound,
    TidegateError,
)
from app.lifecycle import Stage
from app.permit import Ledger, current_permit
from app.settings import Settings
from app.workload import Capacity, DecodingStats, InHand, Step, StepRecord

logger = logging.getLogger(__name__)

# How long vllm's own shutdown waits for the engine before it kills it.
SHUTDOWN_S = 2.0

# Sampling that vllm compiles when it is first asked for, with all streams standing still.
_COMPILED: dict[str, Any] = {"logprobs": 1, "temperature": 1.0, "top_k": 5, "top_p": 0.9, "seed": 0}

# Some answers repeat parts of the request, and pydantic writes at most 255 levels.
MAX_DEPTH = 200

MAX_MODEL_CHARS = 256


def build(settings: Settings, ledger: Ledger, report: Callable[[Stage], None]) -> "VllmEngine":
    """Start the engine's processes and load the model. Blocks; runs in a thread.

    Raises:
        SettingsError: an engine or frontend setting is not one of the installed vllm.
        Exception: whatever keeps the engine from starting.

    """
    # An engine that was here before has left its own values in it.
    disable_envs_cache()
    model, name = settings.engine.model, None
    if model is None:
        model, name = str(embedded.ensure()), embedded.SERVED_NAME
    args = parse_arguments(settings, model, name)
    if args.enforce_eager and current_platform.is_cpu():
        environment.compile_nothing()
    log = _step_log(settings.metrics.step_records, args)
    report(Stage.STARTING_ENGINE)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    propagate_flash_late_interaction(args, engine_args)
    config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    report(Stage.LOADING)
    recorder = StatsRecorder(log=log)
    others = engine_processes()
    llm = GatedLLM.from_vllm_config(
        config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        stat_loggers=[recorder.stat_logger, SeriesLogger],
        enable_log_requests=args.enable_log_requests,
    )
    if log is not None:
        log.states = llm.output_processor.request_states
    processes = [process for process in engine_processes() if process not in others]
    return VllmEngine(llm, args, recorder, ledger, processes, settings)


def _step_log(most: int, args: argparse.Namespace) -> StepLog | None:
    """Where steps are kept, if they are; the engine is asked for what each computes."""
    if not most:
        return None
    if not args.enable_logging_iteration_details:
        without_lines()
    args.enable_logging_iteration_details = True
    return StepLog(most)


class VllmEngine:
    """The engine as the other rooms see it; implements `app.engine.protocol.Engine`."""

    def __init__(
        self,
        llm: GatedLLM,
        args: argparse.Namespace,
        recorder: StatsRecorder,
        ledger: Ledger,
        processes: list[psutil.Process],
        settings: Settings,
    ) -> None:
        self.llm = llm
        self.args = args
        self.recorder = recorder
        self.ledger = ledger
        self.processes = processes
        self.trust_routing_headers = settings.server.trust_routing_headers
        llm.coalescer.on = settings.server.coalesce_chunks
        self.state = State()

    async def warm_up(self) -> None:
        """Build vllm's serving objects on the event loop and answer a first request."""
        tasks = await self.llm.get_supported_tasks()
        await init_app_state(self.llm, self.state, self.args, tasks)
        await self.llm.reset_mm_cache()
        if "generate" in tasks:
            first = CompletionRequest(prompt=[0], max_tokens=2, ignore_eos=True, **_COMPILED)
            answer = await self.state.openai_serving_completion.create_completion(first)
            if isinstance(answer, ErrorResponse):
                raise from_response(answer)
        # Or vllm's output loop looks a variable up for each token.
        enable_envs_cache()

    @property
    def model_name(self) -> str:
        name: str = self.state.openai_serving_models.base_model_paths[0].name
        return name

    @property
    def dead(self) -> bool:
        return bool(self.llm.errored) or bool(self._finished())

    def _finished(self) -> Mapping[str, int]:
        """Exit codes of the engines' processes that have ended.

        vllm tells of one only when it has waited for the others to end, too.
        """
        manager = self.llm.engine_core.resources.engine_manager
        finished: Mapping[str, int] = getattr(manager, "finished_procs", dict)()
        return finished

    @property
    def step_age_s(self) -> float | None:
        last = self.recorder.last_step_at
        return None if last is None else self.recorder.clock() - last

    def in_hand(self) -> Mapping[int, InHand]:
        steps = self.recorder.last_step_of
        return {engine: InHand(n, steps.get(engine)) for engine, n in self._inside().items()}

    async def ping(self) -> None:
        # The cheapest question that an engine answers from its loop.
        await self.llm.is_sleeping()

    def get_decoding_stats(self) -> DecodingStats:
        return combine(self.recorder.steps, self._inside())

    @property
    def step_records(self) -> Sequence[StepRecord]:
        log = self.recorder.log
        return () if log is None else tuple(log.records)

    def on_step(self, listener: Callable[[Step], None]) -> None:
        self.recorder.listeners.append(listener)

    @property
    def capacity(self) -> Capacity:
        config = self.llm.vllm_config
        engines, cache = len(self._ranks), config.cache_config
        return Capacity(
            slots=config.scheduler_config.max_num_seqs * engines,
            step_tokens=config.scheduler_config.max_num_batched_tokens * engines,
            # The number of blocks is that of all engines already. One of each is vllm's own, for
            # padding; it is the only one where a model needs no cache.
            kv_tokens=max(0, (cache.num_gpu_blocks or 0) - engines) * cache.block_size,
            kv_block=cache.block_size,
            engines=engines,
        )

    @property
    def _ranks(self) -> list[int]:
        return list(self.llm.engine_core.engine_ranks_managed or [0])

    def _inside(self) -> Mapping[int, int]:
        """Unfinished sequences by engine index; an idle engine has 0."""
        live = self.llm.output_processor.request_states
        if len(self._ranks) == 1:
            return {self._ranks[0]: len(live)}
        # The client forgets an aborted request only when its engine reports next.
        client = self.llm.engine_core
        chosen = Counter(
            identity for request, identity in client.reqs_in_flight.items() if request in live
        )
        return {
            engine: chosen[identity]
            for engine, identity in zip(self._ranks, client.core_engines, strict=True)
        }

    def parse(self, operation: Operation, body: bytes) -> Call:
        data = fields.without_nulls(_decode(body))
        _check_model(data.get("model"))
        fields.refuse(operation, data, tool_server=self.args.tool_server is not None)
        try:
            request = SPECS[operation].validator.validate_python(data)
            if operation is Operation.DETOKENIZE:
                self.llm.renderer.validate_token_ids(request.tokens, parameter="tokens")
        except pydantic.ValidationError as error:
            raise from_validation(error, data) from error
        except VLLMError as error:
            raise translate(error) from error
        except Exception as error:
            # vllm's validators look at raw values; what trips them is in the body.
            wrong = misfit(operation, data)
            if wrong is None:
                raise InvalidValue("The request body is not valid.") from error
            raise from_validation(wrong, data) from error
        return describe(operation, request, len(body))

    async def run(
        self, call: Call, request: Request, channel: Channel | None = None
    ) -> Document | Stream:
        handler = SPECS[call.operation].handler(self.state)
        if handler is None:
            raise InvalidValue(f"The model does not support {call.operation.value}.", "model")
        if channel is not None and is_plain(call, self.args, self._parser):
            # A parser makes no chunk of a text that is empty.
            parsed = call.operation is Operation.CHAT and self._parser is not None
            channel.open(empties=not parsed)
            current_channel.set(channel)
        else:
            current_channel.set(None)  # or it were that of the connection's last request
        try:
            result = await handler(*self._arguments(call, request))
            return await self._answer(result)
        except Exception as error:
            permit = current_permit.get()
            failure = (permit and permit.failure) or translate(error)
            raise self._with_counts(failure) from error

    @property
    def _parser(self) -> Any:
        return getattr(getattr(self.state, "openai_serving_chat", None), "parser_cls", None)

    def _with_counts(self, failure: TidegateError) -> TidegateError:
        """A prompt that fills the context fails in vllm without a word of the context."""
        limit = self.llm.model_config.max_model_len
        if not isinstance(failure, ContextLengthExceeded) or str(limit) in failure.message:
            return failure
        return ContextLengthExceeded(
            f"This model's maximum context length is {limit} tokens, but at least {limit + 1} were "
            f"requested ({limit} in the prompt, at least 1 for the output)."
        )

    def _arguments(self, call: Call, request: Request) -> tuple[Any, Request]:
        """The request and the headers as vllm may see them, under an id used only once."""
        engine_id = f"{request.state.request_id}-{secrets.token_hex(16)}"
        if hasattr(call.request, "request_id"):
            prefix = "resp_" if call.operation is Operation.RESPONSES else ""
            call.request.request_id = f"{prefix}{engine_id}"
        hidden = {b"x-request-id", b"x-vllm-priority", b"authorization", b"x-api-key"}
        if not self.trust_routing_headers:
            hidden.add(b"x-data-parallel-rank")
        headers = [(k, v) for k, v in request.scope["headers"] if k not in hidden]
        headers.append((b"x-request-id", engine_id.encode()))
        return call.request, Request({**request.scope, "headers": headers, "state": {}})

    async def _answer(self, result: Any) -> Document | Stream:
        if isinstance(result, ErrorResponse):
            raise from_response(result)
        if isinstance(result, pydantic.BaseModel):
            exclude_none = type(result).__module__.startswith("vllm.entrypoints.anthropic")
            body = result.model_dump_json(by_alias=True, exclude_none=exclude_none)
            return Document(body.encode())
        if isinstance(result, Response):
            return await _document(result)
        chunks = with_sse_keep_alive(_as_text(result), float(self.args.sse_keep_alive_interval))
        return Stream(chunks)

    def translate(self, error: Exception) -> TidegateError:
        return translate(error)

    async def models(self) -> dict[str, Any]:
        listing = await self.state.openai_serving_models.show_available_models()
        content: dict[str, Any] = listing.model_dump()
        return content

    def schemas(self) -> Mapping[Operation, dict[str, Any]]:
        template = "#/components/schemas/{model}"
        return {
            operation: spec.schema.json_schema(ref_template=template)
            for operation, spec in SPECS.items()
        }

    def shutdown(self) -> None:
        # Before its sockets are closed under it: that would look like the engine's death.
        cancel_task_threadsafe(self.llm.output_handler)
        try:
            self.llm.shutdown(timeout=SHUTDOWN_S)
        finally:
            end(self.processes)

    def kill(self) -> None:
        cancel_task_threadsafe(self.llm.output_handler)
        end(self.processes)


def _decode(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Strict where Python's own parser is lenient: no NaN, no lone surrogates, no bad UTF-8.
    """
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson(f"The request body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidValue("The request body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth_exceeds(data, MAX_DEPTH):
        raise InvalidJson(f"The request body is nested more than {MAX_DEPTH} levels deep.")
    return data


def _depth_exceeds(data: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [data]
    for _ in range(limit):
        members = (value.values() if isinstance(value, dict) else value for value in level)
        level = [inner for each in members for inner in each if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _check_model(name: Any) -> None:
    """No model has such a name, and messages and log lines repeat it."""
    if isinstance(name, str) and len(name) > MAX_MODEL_CHARS:
        raise ModelNotFound(f"The model `{name[:MAX_MODEL_CHARS]}…` does not exist.", "model")


async def _document(response: Response) -> Document:
    """A response of vllm's as a value; the pooling routes build them themselves."""
    if isinstance(response, StreamingResponse):
        body = b"".join([_bytes(chunk) async for chunk in response.body_iterator])
    else:
        body = bytes(response.body)
    skipped = {"content-length", "content-type"}
    headers = {k: v for k, v in response.headers.items() if k not in skipped}
    return Document(body, response.headers.get("content-type", "application/json"), headers)


def _bytes(chunk: str | bytes | memoryview) -> bytes:
    return chunk.encode() if isinstance(chunk, str) else bytes(chunk)


async def _as_text(chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    """A stream's chunks as server-sent events; responses come as event objects."""
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            if isinstance(chunk, str):
                yield chunk
            else:
                data = chunk.model_dump_json(by_alias=True)
                yield f"event: {chunk.type}\ndata: {data}\n\n"
