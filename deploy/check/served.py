"""The service in a pod: its settings, read by the service's own parser from what the pod mounts."""

import importlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from app.settings import Settings, SettingsError, load
from deploy.check.findings import Finding, Findings
from deploy.check.objects import Object, Pods, dig
from deploy.check.tree import Overlay

# What a controller adds to the environment of each pod.
_GIVEN: Final = {"LWS_LEADER_ADDRESS": "leader.example", "LWS_WORKER_INDEX": "1"}
_REFERENCE: Final = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True)
class Served:
    """Pods of the service, and what they are set to."""

    overlay: Overlay
    pods: Pods
    settings: Settings

    def finding(self, key: str, problem: str) -> Finding:
        """About the pods, by a key below their template."""
        path = key if key == "settings" else f"{self.pods.path}.{key}"
        return self.overlay.finding(self.pods.owner, path, problem)

    @property
    def preparing_s(self) -> float:
        """From the end's announcement to SIGTERM: the preStop hook."""
        return pre_stop_s(self.pods.container)

    @property
    def ending_s(self) -> float:
        """From the end's announcement to the last token, at the longest."""
        lifecycle = self.settings.lifecycle
        return self.preparing_s + lifecycle.drain_settle_s + lifecycle.drain_timeout_s


def served(overlay: Overlay) -> list[Served]:
    """All pods of an overlay whose settings can be read."""
    return [item for pods in overlay.pods() if isinstance(item := _read(overlay, pods), Served)]


def settings(overlay: Overlay) -> Findings:
    """The service's own parser takes what each pod is given."""
    for pods in overlay.pods():
        item = _read(overlay, pods)
        if isinstance(item, Finding):
            yield item
            continue
        for name, value in environment(pods.container).items():
            if _REFERENCE.search(value):
                key = f"{pods.path}.spec.containers[0].env.{name}"
                yield overlay.finding(pods.owner, key, f"nothing gives {value} a value")


def engine_arguments(overlays: Sequence[Overlay]) -> Findings:
    """vLLM's own parser takes the engine's, as `python -m app check` has it.

    Imports vllm: `app.engine.environment.prepared` goes before it.
    """
    checked: set[str] = set()
    for item in (item for overlay in overlays for item in served(overlay)):
        text = item.settings.model_dump_json()
        if text in checked:
            continue
        checked.add(text)
        try:
            importlib.import_module("app.engine.check").check(item.settings)
        except SettingsError as error:
            yield item.finding("settings", str(error))


def pre_stop_s(container: Object) -> float:
    """How long a preStop hook keeps SIGTERM back; a hook that drains is the drain itself."""
    hook = dig(container, "lifecycle.preStop", {})
    command = dig(hook, "exec.command", [])
    if command[:1] == ["sleep"] and len(command) > 1:
        return float(command[1])
    return float(dig(hook, "sleep.seconds", 0))


def _read(overlay: Overlay, pods: Pods) -> Served | Finding:
    def wrong(key: str, problem: str) -> Finding:
        return overlay.finding(pods.owner, f"{pods.path}.spec.{key}", problem)

    arguments = [word for word in pods.container.get("args", ()) if word != "worker"]
    try:
        path = PurePosixPath(arguments[arguments.index("--config") + 1])
    except (ValueError, IndexError):
        return wrong("containers[0].args", "has no --config FILE")
    text = _mounted(overlay, pods, path)
    if text is None:
        return wrong("containers[0].args", f"no ConfigMap of the overlay is mounted as {path}")
    try:
        return Served(overlay, pods, _parsed(text, path.name, environment(pods.container)))
    except SettingsError as error:
        return wrong(f"volumes ({path.name})", str(error))


def _mounted(overlay: Overlay, pods: Pods, path: PurePosixPath) -> str | None:
    volume = pods.mount(str(path.parent)) or {}
    config = overlay.find("ConfigMap", dig(volume, "configMap.name", ""))
    text: str | None = dig(config, "data", {}).get(path.name)
    return text


def _parsed(text: str, name: str, environ: Mapping[str, str]) -> Settings:
    with tempfile.TemporaryDirectory(prefix="deploy-check-") as scratch:
        file = Path(scratch, name)
        file.write_text(text, "utf-8")
        try:
            return load(["--config", str(file)], environ)
        except SettingsError as error:
            raise SettingsError(str(error).replace(f"{scratch}/", "")) from None


def environment(container: Object) -> dict[str, str]:
    """A container's variables, those that the manifest gives a value."""
    return dict(_variables(container))


def _variables(container: Object) -> Iterator[tuple[str, str]]:
    for variable in container.get("env", ()):
        if "value" in variable:
            value = str(variable["value"])
            yield variable["name"], _REFERENCE.sub(lambda m: _GIVEN.get(m[1], m[0]), value)
