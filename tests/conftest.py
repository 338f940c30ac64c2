"""What all tests share: the tiny model, a service on it, services with settings of their own."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtest.tiny_model import build_model
from tests.rig.models import build_lora
from tests.rig.peer import Peer
from tests.rig.service import Server, Service, Setting, tiny_settings

SERVERS = {"service", "start_service", "start_module_service", "peer"}
LONGEST = (
    "test_stop",
    "test_start",
    "test_multi_node",
    "test_data_parallel",
    "test_parity",
    "test_rig",
    "test_monitoring",
    "test_disconnect_storm",
    "test_embeddings",
    "test_parameters",
    "test_metrics_truth",
    "test_failures",
    "test_bad_http",
)
"""First, for the last one runs alone."""
ALONE = (
    "test_admission",
    "test_client",
    "test_coalesce",
    "test_disconnects",
    "test_drain",
    "test_engine_aborts",
    "test_frontend",
    "test_hostile",
    "test_ops",
    "test_poller",
    "test_progress",
    "test_run",
    "test_scrape",
    "test_server",
    "test_short_way",
    "test_sse_server",
    "test_stall",
)
"""What measures times that others would change."""


class StartService:
    """Starts a service on the tiny model; `engine__max_num_seqs=2` is `engine.max_num_seqs`.

    A setting that is None is left out, also when the rig would set it. The service is ready when
    the call returns, unless `wait` is false: then it is only started.
    """

    def __init__(self, model: Path, logs: pytest.TempPathFactory, stack: ExitStack) -> None:
        self.started: list[Service] = []
        self._model = model
        self._logs = logs
        self._stack = stack

    def __call__(
        self,
        *,
        wait: bool = True,
        config: Path | None = None,
        env: dict[str, str] | None = None,
        **settings: Setting,
    ) -> Service:
        log = self._logs.mktemp("service") / "log"
        own = {name.replace("__", "."): value for name, value in settings.items()}
        service = Service(tiny_settings(self._model) | own, log, config=config, env=env)
        self.started.append(service)
        self._stack.callback(service.close)
        service.start()
        if wait:
            service.wait_ready()
        return service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a server runs the engine; but for ALONE, two files run at a time."""
    for item in items:
        if item.path.stem not in ALONE:
            item.add_marker(pytest.mark.beside)
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engine)
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its servers logged last."""
    report = yield
    if report.failed:
        for number, server in enumerate(_servers(getattr(item, "funcargs", {}))):
            report.sections.append((f"log of server {number}", server.log_tail()))
    return report


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a random Llama, served as `tiny`."""
    return build_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an adapter for it, served as `tiny-lora`."""
    return build_lora(tmp_path_factory.mktemp("tiny") / "lora")


@pytest.fixture(scope="session")
def service(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests that need no settings of their own: 4 slots, 1,024 tokens, tools."""
    settings = tiny_settings(tiny_model)
    settings |= {"frontend.enable_auto_tool_choice": True, "frontend.tool_call_parser": "hermes"}
    with Service(settings, tmp_path_factory.mktemp("service") / "log") as running:
        yield running


@pytest.fixture
def start_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartService]:
    """For services that end with the test."""
    with ExitStack() as stack:
        yield StartService(tiny_model, tmp_path_factory, stack)


@pytest.fixture(scope="module")
def start_module_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartService]:
    """For a module's own fixture: services that end with the module."""
    with ExitStack() as stack:
        yield StartService(tiny_model, tmp_path_factory, stack)


@pytest.fixture(scope="session")
def peer(
    tiny_model: Path, tiny_lora: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    """vLLM's own server with the settings of `service`, to compare answers."""
    with Peer(tiny_model, tiny_lora, tmp_path_factory.mktemp("peer") / "log") as running:
        yield running


def _servers(values: dict[str, Any]) -> Iterator[Server]:
    for value in values.values():
        if isinstance(value, Server):
            yield value
        elif isinstance(value, StartService):
            yield from value.started
