"""What can be broken in the autoscalers, and in what they and others ask of Prometheus."""

from tests.deploy.breaks import ADAPTER, BASE, HPA, KEDA, SETTINGS, Break

STEPS_UP = """\
    scaleUp:
      stabilizationWindowSeconds: 0
      selectPolicy: Max
      policies:
        - {type: Pods, value: 2, periodSeconds: 180}
        - {type: Percent, value: 50, periodSeconds: 180}
"""

SCALING_BREAKS = {
    # -- autoscalers
    "two autoscalers": Break(
        "k8s/overlays/gpu-hpa/kustomization.yaml", "images:", "resources:\n  - ../../base\n  - "
        "second.yaml\nimages:", "gpu-hpa", ("ScaledObject/second", "has an autoscaler already"),
    ),
    "replicas that an autoscaler owns": Break(
        BASE, "  revisionHistoryLimit: 5", "  replicas: 2", "gpu-hpa",
        ("Deployment/tidegate: spec.replicas", "autoscaler"),
    ),
    "an autoscaler of nothing": Break(
        HPA, "kind: Deployment, name: tidegate", "kind: Deployment, name: tidegat", "gpu-hpa",
        ("spec.scaleTargetRef", "there is no Deployment/tidegat"),
    ),
    "no room to scale": Break(
        HPA, "maxReplicas: 8", "maxReplicas: 1", "gpu-hpa", ("spec.maxReplicas", "1 is not above"),
    ),
    "keda from zero": Break(
        KEDA, "  minReplicaCount: 1\n", "", "gpu-keda", ("spec.minReplicaCount", "never wake"),
    ),
    "a running target that is never passed": Break(
        HPA, 'averageValue: "24"', 'averageValue: "32"', "gpu-hpa",
        ("spec.metrics[1]", "vllm_running_requests: 32", "engine.max_num_seqs (32)"),
    ),
    "fewer slots than the target": Break(
        SETTINGS, "max_num_seqs: 32", "max_num_seqs: 16", "gpu-keda",
        ("spec.triggers[1].metadata.threshold", "24", "engine.max_num_seqs (16)"),
    ),
    "a pending target that the door never lets come": Break(
        SETTINGS, "lifecycle:", "admission:\n  max_pending: 6\nlifecycle:", "gpu-hpa",
        ("spec.metrics[0]", "vllm_pending_requests", "half of the 6"),
    ),
    "pending alone": Break(
        HPA, "    - type: Pods\n      pods:\n        metric: {name: vllm_running_requests}\n"
        '        target: {type: AverageValue, averageValue: "24"}\n', "", "gpu-hpa",
        ("HorizontalPodAutoscaler/tidegate: spec.metrics", "flaps"),
    ),
    "a strict SLO on pending": Break(
        SETTINGS, "lifecycle:", "admission:\n  ttft_slo_s: 1\nlifecycle:", "gpu-hpa",
        ("spec.metrics", "ttft_slo_s", "tidegate_demand_sequences"),
    ),
    "steps up in the time of a look": Break(
        HPA, "Pods, value: 2, periodSeconds: 180", "Pods, value: 2, periodSeconds: 15", "gpu-hpa",
        ("spec.behavior.scaleUp.policies", "15 s"),
    ),
    "down in the time of a breath": Break(
        HPA, "stabilizationWindowSeconds: 600", "stabilizationWindowSeconds: 30", "gpu-hpa",
        ("spec.behavior.scaleDown.stabilizationWindowSeconds", "30 s"),
    ),
    "down before the last has drained": Break(
        HPA, "periodSeconds: 150", "periodSeconds: 60", "gpu-hpa",
        ("spec.behavior.scaleDown.policies", "150 s"),
    ),
    "no limits": Break(
        HPA, STEPS_UP, "", "gpu-hpa", ("spec.behavior.scaleUp.policies", "missing"),
    ),
    "typo in keda's trigger": Break(
        KEDA, "serverAddress:", "serverAdress:", "gpu-keda",
        ("spec.triggers[0].metadata.serverAdress", "unknown key"),
    ),
    "keda's trigger of another kind": Break(
        KEDA, "type: prometheus\n", "type: prometheuz\n", "gpu-keda",
        ("spec.triggers[0].type", "prometheuz"),
    ),
    "keda's sum for one pod's target": Break(
        KEDA, "metricType: AverageValue", "metricType: Value", "gpu-keda",
        ("spec.triggers[0].metricType", "the sum of all pods"),
    ),
    "keda's null": Break(
        KEDA, 'ignoreNullValues: "false"', 'ignoreNullValues: "true"', "gpu-keda",
        ("ignoreNullValues", "no load"),
    ),
    "keda's other pods": Break(
        KEDA, 'pod=~"tidegate-[^-]+-[^-]+"', 'pod=~"tidegate-.*"', "gpu-keda",
        ("spec.triggers[0].metadata.query", "alone"),
    ),
    "keda's other namespace": Break(
        "k8s/overlays/gpu-keda/kustomization.yaml", "index: 1", "index: 3", "gpu-keda",
        ("spec.triggers[0].metadata.query",),
    ),
    "keda's vector": Break(
        KEDA, "sum(max by (pod) (vllm_pending", "avg(max by (pod) (vllm_pending", "gpu-keda",
        ("spec.triggers[0].metadata.query", "one value"),
    ),
    # -- metrics and labels
    "a renamed metric in the hpa": Break(
        HPA, "{name: vllm_running_requests}", "{name: vllm_requests_running}", "gpu-hpa",
        ("components/hpa/hpa.yaml:", "vllm_requests_running"),
    ),
    "a metric that the adapter does not make": Break(
        HPA, "{name: vllm_running_requests}", "{name: vllm_pending_tokens}", "gpu-hpa",
        ("spec.metrics[1]", "no rule of the adapter", "vllm_pending_tokens"),
    ),
    "a renamed metric in the adapter": Break(
        ADAPTER, "tidegate_demand_sequences)", "tidegate_demand)", "gpu-hpa",
        ("prometheus-adapter.yaml", "tidegate_demand"),
    ),
    "a renamed metric in keda": Break(
        KEDA, "(vllm_pending_requests{", "(pending_requests{", "gpu-keda",
        ("scaledobject.yaml", "spec.triggers[0].metadata.query", "no metric pending_requests"),
    ),
    "a part of a query that the adapter does not fill in": Break(
        ADAPTER, "<<.LabelMatchers>>", "<<.LabelMatcher>>", "gpu-hpa",
        ("prometheus-adapter.yaml: rules.custom.metricsQuery", "LabelMatcher>>"),
    ),
    "a renamed metric of kube-state-metrics": Break(
        "k8s/components/monitoring/prometheusrule.yaml", "autoscaler_spec_max_replicas",
        "autoscaler_max_replicas", "gpu-hpa", ("kube_horizontalpodautoscaler_max_replicas",),
    ),
    "a label that kube-state-metrics has not": Break(
        "k8s/components/monitoring/prometheusrule.yaml", 'ready{container="', 'ready{contaner="',
        "gpu-hpa", ("kube_pod_container_status_ready has no label contaner",),
    ),
    "a label that is not there": Break(
        KEDA, "(vllm_pending_requests{", '(vllm_pending_requests{model="x",', "gpu-keda",
        ("spec.triggers[0].metadata.query", "vllm_pending_requests has no label model"),
    ),
    "a grouping that is not there": Break(
        KEDA, "max by (pod) (vllm_pending", "max by (pods) (vllm_pending", "gpu-keda",
        ("spec.triggers[0].metadata.query", "label pods"),
    ),
    "a renamed metric for the picker": Break(
        "k8s/components/gateway/endpoint-picker.yaml", "vllm_kv_cache_usage_ratio",
        "vllm_kv_cache_ratio", "gateway", ("endpoint-picker.yaml:", "vllm_kv_cache_ratio"),
    ),
}  # fmt: skip
