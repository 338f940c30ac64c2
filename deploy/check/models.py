"""Custom kinds without a Python model to install, written down from the pages of their APIs.

Of their fields those that a manifest like ours has, and no filters: what is not here is refused,
also where the API would take it. Pod templates are checked by schemas.py. HTTPRoute has a model on
npm (@kubernetes-models/gateway-api), which would need Node; the other two have none.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[
    str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
Duration = Annotated[str, Field(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^\d+%$")]


class Strict(BaseModel):
    """No key that it does not name, and no value of another type."""

    model_config = ConfigDict(
        extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=False
    )


class Metadata(Strict):
    """Of any object."""

    name: Name
    namespace: Name | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Root(Strict):
    """An object; its version and kind have been looked at to find the model."""

    api_version: str
    kind: str
    metadata: Metadata


# -- leaderworkerset.x-k8s.io/v1


class RollingUpdate(Strict):
    """How many groups at a time."""

    partition: Count | None = None
    max_unavailable: Share | None = None
    max_surge: Share | None = None


class RolloutStrategy(Strict):
    """There is one."""

    type: Literal["RollingUpdate"]
    rolling_update_configuration: RollingUpdate | None = None


class NetworkConfig(Strict):
    """One headless Service, or one for each group."""

    subdomain_policy: Literal["Shared", "UniquePerReplica"]


class SubGroupPolicy(Strict):
    """Parts of a group."""

    sub_group_policy_type: Literal["LeaderWorker", "LeaderExcluded"] | None = None
    sub_group_size: Annotated[int, Field(ge=1)] | None = None


class LeaderWorkerTemplate(Strict):
    """A leader and its workers: `size` pods."""

    size: Annotated[int, Field(ge=1)] | None = None
    restart_policy: (
        Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None", "Default"] | None
    ) = None
    leader_template: dict[str, Any] | None = None
    worker_template: dict[str, Any]
    sub_group_policy: SubGroupPolicy | None = None


class LeaderWorkerSetSpec(Strict):
    """Groups of pods that start and end together."""

    replicas: Count | None = None
    leader_worker_template: LeaderWorkerTemplate
    rollout_strategy: RolloutStrategy | None = None
    startup_policy: Literal["LeaderCreated", "LeaderReady"] | None = None
    network_config: NetworkConfig | None = None


class LeaderWorkerSet(Root):
    """https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/ ."""

    spec: LeaderWorkerSetSpec


# -- inference.networking.k8s.io/v1


class PortNumber(Strict):
    """A port by its number."""

    number: Port


class LabelSelector(Strict):
    """Pods of the same namespace."""

    match_labels: Annotated[dict[str, str], Field(min_length=1)]


class EndpointPickerRef(Strict):
    """The Service that is asked where each request is to go."""

    group: str | None = None
    kind: str | None = None
    name: Name
    port: PortNumber
    failure_mode: Literal["FailOpen", "FailClose"] | None = None


class InferencePoolSpec(Strict):
    """Pods that serve one model."""

    selector: LabelSelector
    target_ports: Annotated[list[PortNumber], Field(min_length=1, max_length=8)]
    endpoint_picker_ref: EndpointPickerRef


class InferencePool(Root):
    """https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/ ."""

    spec: InferencePoolSpec


# -- gateway.networking.k8s.io/v1


class ParentRef(Strict):
    """A gateway, or one of its listeners."""

    group: str | None = None
    kind: str | None = None
    namespace: Name | None = None
    name: Name
    section_name: Name | None = None
    port: Port | None = None


class PathMatch(Strict):
    """Of a request's path."""

    type: Literal["Exact", "PathPrefix", "RegularExpression"]
    value: Annotated[str, Field(pattern=r"^/")]


class ValueMatch(Strict):
    """Of a header or a query parameter."""

    type: Literal["Exact", "RegularExpression"] | None = None
    name: str
    value: str


class RouteMatch(Strict):
    """All that it names must match."""

    path: PathMatch | None = None
    headers: list[ValueMatch] = []
    query_params: list[ValueMatch] = []
    method: str | None = None


class BackendRef(Strict):
    """A Service or an InferencePool."""

    group: str | None = None
    kind: str | None = None
    namespace: Name | None = None
    name: Name
    port: Port | None = None
    weight: Count | None = None


class Timeouts(Strict):
    """0s: none."""

    request: Duration | None = None
    backend_request: Duration | None = None


class RouteRule(Strict):
    """What goes where."""

    name: Name | None = None
    matches: list[RouteMatch] = []
    backend_refs: list[BackendRef] = []
    timeouts: Timeouts | None = None


class HTTPRouteSpec(Strict):
    """Gateways, hosts and rules."""

    parent_refs: list[ParentRef] = []
    hostnames: list[str] = []
    rules: Annotated[list[RouteRule], Field(min_length=1)]


class HTTPRoute(Root):
    """https://gateway-api.sigs.k8s.io/reference/spec/ ."""

    spec: HTTPRouteSpec
