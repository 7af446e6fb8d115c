"""The strategies that come with byoc, by name: where each class is, imported when it is asked for."""

BUILT_IN = {
    "all-supported": "byoc.placement.strategies._baselines:AllSupported",
    "exact": "byoc.placement.strategies._optimizing:Exact",
    "exhaustive": "byoc.placement.strategies._baselines:Exhaustive",
    "faster-ops": "byoc.placement.strategies._baselines:FasterOps",
    "faster-ops-transfer": "byoc.placement.strategies._baselines:FasterOpsTransfer",
    "host-only": "byoc.placement.strategies._baselines:HostOnly",
    "launch-aware": "byoc.placement.strategies._optimizing:LaunchAware",
    "makespan": "byoc.placement.strategies._makespan:Makespan",
    "min-cut": "byoc.placement.strategies._optimizing:MinCut",
    "provider-order": "byoc.placement.strategies._baselines:ProviderOrder",
    "throughput": "byoc.placement.strategies._throughput:Throughput",
    "tree-dp": "byoc.placement.strategies._optimizing:TreeDP",
}
