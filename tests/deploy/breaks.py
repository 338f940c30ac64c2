"""What can be broken in the manifests, one thing at a time, and what has to be said of it."""

from dataclasses import dataclass

HPA = "k8s/components/hpa/hpa.yaml"
KEDA = "k8s/components/keda/scaledobject.yaml"
BASE = "k8s/base/deployment.yaml"
SETTINGS = "k8s/base/tidegate.yaml"
GROUP = "k8s/components/multinode/leaderworkerset.yaml"
ADAPTER = "k8s/components/hpa/prometheus-adapter.yaml"
MONITOR = "k8s/components/podmonitor/podmonitor.yaml"


@dataclass(frozen=True)
class Break:
    """In `file`, `old` becomes `new`; then of `overlay` there is a line with all of `said`."""

    file: str
    old: str
    new: str
    overlay: str
    said: tuple[str, ...]

    @property
    def rendered(self) -> str:
        """Where that is; a component that no overlay has is looked at by itself."""
        return self.overlay if "/" in self.overlay else f"overlays/{self.overlay}"


BREAKS = {
    # -- keys and values that the API server, or an operator's, would not take
    "typo in a probe": Break(
        BASE, "livenessProbe:", "livenesProbe:", "gpu",
        ("overlays/gpu: Deployment/tidegate: spec.template.spec.containers[0]", "livenesProbe"),
    ),
    "typo in the hpa": Break(
        HPA, 'averageValue: "4"', 'averageValu: "4"', "gpu-hpa",
        ("HorizontalPodAutoscaler/tidegate: spec.metrics[0].pods.target", "averageValu"),
    ),
    "a text for a number": Break(
        HPA, "maxReplicas: 8", "maxReplicas: many", "gpu-hpa", ("spec.maxReplicas", "'many'"),
    ),
    "typo in a monitor": Break(
        MONITOR, "podMetricsEndpoints:", "podMetricsEndpointz:", "gpu-hpa",
        ("PodMonitor/tidegate: spec.podMetricsEndpointz", "unknown key"),
    ),
    "typo deep in a monitor": Break(
        MONITOR, "scrapeTimeout:", "scrapeTimeot:", "gpu-hpa",
        ("spec.podMetricsEndpoints[0].scrapeTimeot", "unknown key"),
    ),
    "no duration": Break(
        MONITOR, "interval: 15s", "interval: 15 seconds", "gpu-hpa",
        ("PodMonitor/tidegate", "podMetricsEndpoints.0.interval"),
    ),
    "typo in keda": Break(
        KEDA, "pollingInterval:", "poolingInterval:", "gpu-keda",
        ("ScaledObject/tidegate: spec.poolingInterval", "unknown key"),
    ),
    "typo in keda's behavior": Break(
        KEDA, "selectPolicy:", "selectPolice:", "gpu-keda", ("behavior.scaleUp.selectPolice",),
    ),
    "no such fallback": Break(
        KEDA, "currentReplicasIfHigher", "currentReplicasIfMore", "gpu-keda",
        ("spec.fallback.behavior", "currentReplicasIfMore"),
    ),
    "a fallback that shrinks": Break(
        KEDA, ", behavior: currentReplicasIfHigher", "", "gpu-keda",
        ("spec.fallback.behavior", "static"),
    ),
    "typo in a group": Break(
        GROUP, "restartPolicy:", "restartPolice:", "multinode",
        ("LeaderWorkerSet/tidegate-group: spec.leaderWorkerTemplate.restartPolice", "unknown key"),
    ),
    "no such restart policy": Break(
        GROUP, "RecreateGroupOnPodRestart", "RecreateGroup", "multinode",
        ("spec.leaderWorkerTemplate.restartPolicy",),
    ),
    "typo in a group's pods": Break(
        GROUP, "readOnlyRootFilesystem:", "readonlyRootFilesystem:", "multinode",
        ("leaderTemplate.spec.containers[0].securityContext", "readonlyRootFilesystem"),
    ),
    "typo in the pool": Break(
        "k8s/components/gateway/inferencepool.yaml", "targetPorts:", "targetPort:", "gateway",
        ("InferencePool/tidegate: spec.targetPort", "unknown key"),
    ),
    "typo in the route": Break(
        "k8s/components/gateway/httproute.yaml", "backendRefs:", "backendRef:", "gateway",
        ("HTTPRoute/tidegate: spec.rules[0].backendRef", "unknown key"),
    ),
    "a kind that nobody knows": Break(
        MONITOR, "kind: PodMonitor", "kind: PodMonitr", "gpu-hpa",
        ("PodMonitr", "neither a schema"),
    ),
    "no yaml": Break(
        HPA, "spec:\n", "spec: [\n", "gpu-hpa", ("components/hpa/hpa.yaml",),
    ),
    "a file that is not there": Break(
        "k8s/components/hpa/kustomization.yaml", "[hpa.yaml]", "[hpaa.yaml]", "gpu-hpa",
        ("overlays/gpu-hpa: kustomization.yaml", "hpaa.yaml"),
    ),
    # -- settings
    "no such setting": Break(
        SETTINGS, "drain_settle_s:", "drain_setle_s:", "gpu",
        ("Deployment/tidegate", "drain_setle_s", "did you mean lifecycle.drain_settle_s"),
    ),
    "no such setting in the environment": Break(
        "k8s/components/ttft-slo/deployment.yaml", "TTFT_SLO_S", "TTFT_SLO", "gpu-hpa-slo",
        ("TIDEGATE_ADMISSION__TTFT_SLO", "did you mean"),
    ),
    "no operational port": Break(
        SETTINGS, "  ops_port: 8001\n", "", "gpu", ("Deployment/tidegate", "server.ops_port"),
    ),
    "another port": Break(
        SETTINGS, "  port: 8000", "  port: 8080", "gpu",
        ("spec.template.spec.containers[0].ports", "api is 8000, the settings say 8080"),
    ),
    "no config mounted": Break(
        BASE, "mountPath: /etc/tidegate,", "mountPath: /etc/tidgate,", "gpu",
        ("containers[0].args", "/etc/tidegate/tidegate.yaml"),
    ),
    # -- the pods' end, probes, rights and resources
    "too little grace": Break(
        BASE, "terminationGracePeriodSeconds: 150", "terminationGracePeriodSeconds: 145", "gpu",
        ("terminationGracePeriodSeconds", "145", "preStop 5 + settle 10 + drain 120 + 10"),
    ),
    "a longer drain": Break(
        SETTINGS, "drain_timeout_s: 120", "drain_timeout_s: 300", "gpu",
        ("terminationGracePeriodSeconds", "drain 300"),
    ),
    "workers that go first": Break(
        GROUP, 'command: [sleep, "145"]', 'command: [sleep, "30"]', "multinode",
        ("workerTemplate.spec.containers[0].lifecycle.preStop", "135 s"),
    ),
    "workers that stay for nothing": Break(
        GROUP, 'exec: {command: [sleep, "145"]}', "sleep: {seconds: 145}", "multinode",
        ("workerTemplate.spec.containers[0].lifecycle.preStop.sleep", "has ended"),
    ),
    "keys that the group never gets": Break(
        "k8s/overlays/multinode/kustomization.yaml", "  - ../../components/multinode\n",
        "  - ../../components/keys\n  - ../../components/multinode\n", "multinode",
        ("overlays/multinode: components: keys patches the Deployment", "multinode takes away"),
    ),
    "a group of another size": Break(
        GROUP, "size: 2", "size: 3", "multinode",
        ("spec.leaderWorkerTemplate.size", "3, but engine.nnodes is 2"),
    ),
    "a probe of the other port": Break(
        BASE, "httpGet: {path: /livez, port: ops}", "httpGet: {path: /livez, port: api}", "gpu",
        ("livenessProbe.httpGet.port", "api is not the service's port 8001"),
    ),
    "a probe of no port": Break(
        BASE, "httpGet: {path: /livez, port: ops}", "httpGet: {path: /livez, port: metrics}", "gpu",
        ("livenessProbe.httpGet.port", "metrics"),
    ),
    "liveness that asks for readiness": Break(
        BASE, "path: /livez", "path: /readyz", "gpu", ("livenessProbe.httpGet.path", "/livez"),
    ),
    "no room for a load": Break(
        BASE, "failureThreshold: 360", "failureThreshold: 12", "gpu",
        ("startupProbe", "gives up after 60 s"),
    ),
    "a rollout that gives up first": Break(
        BASE, "progressDeadlineSeconds: 2100", "progressDeadlineSeconds: 600", "gpu",
        ("spec.progressDeadlineSeconds", "1800"),
    ),
    "liveness quicker than readiness": Break(
        BASE, "failureThreshold: 6", "failureThreshold: 1", "gpu", ("livenessProbe", "10 s"),
    ),
    "a root that can be written": Break(
        BASE, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "gpu",
        ("containers[0].securityContext.readOnlyRootFilesystem",),
    ),
    "root": Break(
        BASE, "runAsUser: 2000", "runAsUser: 0", "gpu", ("spec.securityContext.runAsUser", "root"),
    ),
    "a privileged container": Break(
        BASE, "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: false\n            "
        "privileged: true", "gpu", ("securityContext.privileged", "not needed"),
    ),
    "the node's network": Break(
        BASE, "enableServiceLinks: false", "enableServiceLinks: false\n      hostNetwork: true",
        "gpu", ("hostNetwork", "not needed"),
    ),
    "an image of nobody's": Break(
        "k8s/overlays/gpu-hpa/kustomization.yaml", "{name: tidegate,", "{name: tidegat,",
        "gpu-hpa", ("containers[0].image", "from no registry"),
    ),
    "a variable that nobody sets": Break(
        GROUP, "$(LWS_WORKER_INDEX)", "$(LWS_WORKER_INDX)", "multinode",
        ("workerTemplate.spec.containers[0].env.TIDEGATE_ENGINE__NODE_RANK", "LWS_WORKER_INDX"),
    ),
    "service links": Break(
        BASE, "      enableServiceLinks: false\n", "", "gpu", ("spec.enableServiceLinks",),
    ),
    "shared memory on disk": Break(
        BASE, "emptyDir: {medium: Memory, sizeLimit: 1Gi}", "emptyDir: {sizeLimit: 1Gi}",
        "cpu-demo", ("/dev/shm",),
    ),
    "too few GPUs": Break(
        GROUP, 'nvidia.com/gpu: "8"', 'nvidia.com/gpu: "4"', "multinode",
        ("resources.limits", "4 GPUs on each of 2 nodes for 16 ranks"),
    ),
    "a thread for each core of the node": Break(
        "k8s/components/cpu/deployment.yaml", "- {name: OMP_NUM_THREADS,", "- {name: OMP_THREADS,",
        "cpu-demo", ("spec.containers[0].env", "OMP_NUM_THREADS", "limit of 4 CPUs"),
    ),
    "memory that is not reserved": Break(
        "k8s/components/gpu/deployment.yaml", 'requests: {cpu: "4", memory: 32Gi}',
        'requests: {cpu: "4", memory: 16Gi}', "gpu", ("containers[0].resources", "not requested"),
    ),
    "keys that are not mounted": Break(
        "k8s/components/keys/deployment.yaml", "mountPath: /etc/tidegate-keys,",
        "mountPath: /etc/keys,", "components/keys",
        ("components/keys", "auth.keys_file: no /etc/tidegate-keys/"),
    ),
    "a model that is not mounted": Break(
        SETTINGS, "model: meta-llama/", "model: /models/", "gpu",
        ("containers[0].volumeMounts", "engine.model: no /models/Meta-Llama-3-8B-Instruct"),
    ),
    "a rollout that cannot move": Break(
        "k8s/components/full-cluster/deployment.yaml", "maxUnavailable: 1", "maxUnavailable: 0",
        "gpu-hpa-full-cluster", ("spec.strategy.rollingUpdate", "nothing may change"),
    ),
    "a budget that no node gets past": Break(
        "k8s/base/poddisruptionbudget.yaml", "  maxUnavailable: 1", "  minAvailable: 1", "cpu-demo",
        ("PodDisruptionBudget/tidegate: spec.minAvailable",),
    ),
    "a budget of leaders alone": Break(
        "k8s/components/multinode/kustomization.yaml", "op: remove,", "op: test, value: server,",
        "multinode", ("PodDisruptionBudget/tidegate: spec.selector.matchLabels", "leaves out",
        "workerTemplate"),
    ),
    # -- who finds and reaches whom
    "a workload that selects others": Break(
        BASE, "      labels:\n        app.kubernetes.io/name: tidegate\n        "
        "app.kubernetes.io/component: server", "      labels:\n        app.kubernetes.io/name: "
        "tidegate\n        app.kubernetes.io/component: servr", "gpu",
        ("Deployment/tidegate: spec.selector", "servr"),
    ),
    "a route to nothing": Break(
        "k8s/components/gateway/httproute.yaml", "kind: InferencePool, name: tidegate",
        "kind: InferencePool, name: tidegat", "gateway",
        ("HTTPRoute/tidegate: spec.rules.backendRefs", "no InferencePool/tidegat"),
    ),
    "a scrape that comes late": Break(
        MONITOR, "interval: 15s", "interval: 1m", "gpu-hpa",
        ("PodMonitor/tidegate: spec.podMetricsEndpoints.interval", "1m"),
    ),
    "a scrape that takes longer than it may": Break(
        MONITOR, "scrapeTimeout: 10s", "scrapeTimeout: 20s", "gpu-hpa",
        ("PodMonitor/tidegate: spec.podMetricsEndpoints.scrapeTimeout", "20s is above"),
    ),
    "a scrape of nothing": Break(
        MONITOR, "path: /metrics", "path: /metric", "gpu-hpa",
        ("PodMonitor/tidegate: spec.podMetricsEndpoints.path", "/metric is not /metrics"),
    ),
    "a label typo in the service": Break(
        "k8s/base/service.yaml", "component: server", "component: servr", "gpu",
        ("Service/tidegate: spec.selector", "servr", "selects no pod"),
    ),
    "a label typo in the monitor": Break(
        MONITOR, "component: server", "component: servr", "gpu-hpa",
        ("PodMonitor/tidegate: spec.selector.matchLabels", "selects no pod"),
    ),
    "a service that asks workers": Break(
        "k8s/base/service.yaml", "    app.kubernetes.io/component: server\n", "", "multinode",
        ("Service/tidegate: spec.selector", "selects workers"),
    ),
    "a label typo in the spread": Break(
        BASE, "          labelSelector:\n            matchLabels:\n              "
        "app.kubernetes.io/name: tidegate\n", "          labelSelector:\n            matchLabels:\n"
        "              app.kubernetes.io/name: tidegat\n", "gpu", ("topologySpreadConstraints",),
    ),
    "a service port of no name": Break(
        "k8s/base/service.yaml", "targetPort: api", "targetPort: http", "gpu",
        ("Service/tidegate: spec.ports.targetPort", "'http'"),
    ),
    "a service of the operational port": Break(
        "k8s/base/service.yaml", "targetPort: api", "targetPort: ops", "gpu",
        ("Service/tidegate: spec.ports.targetPort", "'ops'"),
    ),
    "a monitor of the API": Break(
        MONITOR, "port: ops", "port: api", "gpu-hpa",
        ("PodMonitor/tidegate: spec.podMetricsEndpoints.port", "'api' is not the port 8001"),
    ),
    "a policy of no port": Break(
        "k8s/base/networkpolicy.yaml", "{port: ops}", "{port: metrics}", "gpu",
        ("NetworkPolicy/tidegate: spec.ingress.ports", "'metrics'"),
    ),
    "metrics behind the policy": Break(
        "k8s/base/networkpolicy.yaml", "{port: ops}", "{port: api}", "gpu",
        ("NetworkPolicy/tidegate: spec.ingress", "nobody may reach port 8001"),
    ),
    "a pool of another port": Break(
        "k8s/components/gateway/inferencepool.yaml", "number: 8000", "number: 8001", "gateway",
        ("InferencePool/tidegate: spec.targetPorts", "8001"),
    ),
    "a picker that looks elsewhere": Break(
        "k8s/components/gateway/endpoint-picker.yaml", "metrics-port: 8001", "metrics-port: 8000",
        "gateway", ("endpoint-picker.yaml: flags.model-server-metrics-port", "8000"),
    ),
    "keys that never change": Break(
        "k8s/components/keys/deployment.yaml", "mountPath: /etc/tidegate-keys,",
        "mountPath: /etc/tidegate-keys, subPath: keys.yaml,", "components/keys",
        ("components/keys", "subPath"),
    ),
    "an account that is not there": Break(
        BASE, "serviceAccountName: tidegate", "serviceAccountName: tidegat", "gpu",
        ("spec.serviceAccountName", "tidegat"),
    ),
}  # fmt: skip
