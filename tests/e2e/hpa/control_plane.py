"""Kubernetes' own control plane on loopback ports: etcd, kube-apiserver, kube-controller-manager.

The controllers that run are the ones of the autoscaling chain. There is no scheduler and no node:
`tests.e2e.hpa.kubelet` is both.
"""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from tests.e2e.hpa.tls import Certificate
from tests.rig.debian import program
from tests.rig.server import LOOPBACK, ROOT, Server, free_port

TOKEN = "the-rigs-own"
"""Of a server that lives for minutes, on the loopback interface."""
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
CONTROLLERS = "horizontalpodautoscaling,deployment,replicaset,disruption"


class Etcd(Server):
    """Debian's own."""

    ready_path = "/health"

    def __init__(self, directory: Path) -> None:
        port, peers = free_port(), f"http://{LOOPBACK}:{free_port()}"
        clients = f"http://{LOOPBACK}:{port}"
        command = [
            program("etcd", "etcd-server"),
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]
        super().__init__(command, port, directory / "etcd.log", {})


class ApiServer(Server):
    """kube-apiserver; whoever has the token may do everything."""

    def __init__(self, binary: Path, etcd: Etcd, tls: Certificate, directory: Path) -> None:
        port, tokens = free_port(), directory / "tokens.csv"
        tokens.write_text(f"{TOKEN},rig,rig,system:masters\n")
        command = [
            str(binary),
            f"--etcd-servers={etcd.url}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            # Nothing looks for the API server inside this cluster.
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--tls-cert-file={tls.certificate}",
            f"--tls-private-key-file={tls.key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=AlwaysAllow",
            f"--service-account-issuer=https://{LOOPBACK}",
            f"--service-account-key-file={tls.key}",
            f"--service-account-signing-key-file={tls.key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # Nobody makes the tokens of service accounts here.
            "--disable-admission-plugins=ServiceAccount",
        ]
        super().__init__(command, port, directory / "kube-apiserver.log", {})
        self.url = f"https://{LOOPBACK}:{port}"
        self.ready_url = f"{self.url}/readyz"
        # In place of the one that knows no certificate and has no token.
        self._probe = self._held.enter_context(
            httpx.Client(verify=tls.trusted(), headers=AUTHORIZATION, trust_env=False)
        )


class ControllerManager(Server):
    """kube-controller-manager, with its own periods: the autoscaler looks every 15 s."""

    ready_path = "/healthz"

    def __init__(self, binary: Path, api: ApiServer, directory: Path) -> None:
        port, access = free_port(), directory / "kubeconfig"
        access.write_text(kubeconfig(api.url))
        command = [
            str(binary),
            f"--kubeconfig={access}",
            f"--controllers={CONTROLLERS}",
            "--leader-elect=false",
            f"--address={LOOPBACK}",
            f"--port={port}",
            "--secure-port=0",
        ]
        super().__init__(command, port, directory / "kube-controller-manager.log", {})


class ControlPlane:
    """All three, in the order in which they need each other, and ended in the reverse one."""

    def __init__(self, tls: Certificate, directory: Path) -> None:
        self._held = ExitStack()
        self._tls, self._directory = tls, directory
        self.url = ""

    def __enter__(self) -> Self:
        programs = binaries()
        with ExitStack() as started:
            etcd = started.enter_context(Etcd(self._directory))
            binary = programs / "kube-apiserver"
            api = started.enter_context(ApiServer(binary, etcd, self._tls, self._directory))
            binary = programs / "kube-controller-manager"
            started.enter_context(ControllerManager(binary, api, self._directory))
            self.url = api.url
            self._held = started.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()


def binaries() -> Path:
    """The directory of both programs; they are built where they are not yet."""
    script = str(ROOT / "deploy" / "control-plane.sh")
    done = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def kubeconfig(url: str) -> str:
    """How a client finds the API server; JSON is YAML too."""
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": "rig", "user": {"token": TOKEN}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
            "current-context": "rig",
        }
    )
