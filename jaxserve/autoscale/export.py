"""A rule with its numbers as the configuration file of the system that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from jaxserve.autoscale.answer import AutoscaleAnswer
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.setting import STATIC, named_values

_PROMETHEUS = "http://prometheus-server.monitoring.svc:9090"
_READ_PERIOD_S = 15
TARGET = "engine"
"""Name of the scaled workload, as ``jaxserve plan`` writes it (a StatefulSet)."""
_REPLICAS = f'max(kube_statefulset_replicas{{statefulset="{TARGET}"}})'
_READY = f'max(kube_statefulset_status_replicas_ready{{statefulset="{TARGET}"}})'
_SCALED = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": TARGET}

Values = Mapping[str, float]
"""Numbers of a rule by name."""


@dataclass(frozen=True)
class ConfigFile:
    """A file of another system."""

    name: str
    notes: tuple[str, ...]
    """lines of comment: what a user has to fill in."""
    content: dict[str, Any]


def config_file(answer: AutoscaleAnswer, fleet: Fleetwide) -> tuple[str, str]:
    """Name and text of the winner's file."""
    row = answer.winner
    written = _WRITERS[row.kind](named_values(row.kind, row.values), fleet)
    reached = "" if row.reached else " The target was not reached where rules were tuned."
    said = (
        f"Rule {row.kind}, tuned on {answer.hours_tuned:.1f} h of recorded traffic: "
        f"{row.attainment:.1%} of the requests inside",
        f"their objectives on the {answer.hours_judged:.1f} h after them, with "
        f"{row.mean_replicas:.2f} replicas on average.{reached}",
    )
    comment = "".join(f"# {line}\n" for line in (*said, *written.notes))
    return written.name, comment + yaml.safe_dump(written.content, sort_keys=False)


def _static(values: Values, fleet: Fleetwide) -> ConfigFile:
    notes = (
        "No rule was cheaper than a fleet that is never scaled:",
        f"kubectl patch statefulset {TARGET} --patch-file replicas.yaml",
    )
    return ConfigFile("replicas.yaml", notes, {"spec": {"replicas": round(values["replicas"])}})


def _policy(pods: int | None, percent: int | None, period_s: int) -> list[dict[str, Any]]:
    both = (("Percent", percent), ("Pods", pods))
    return [
        {"type": kind, "value": value, "periodSeconds": period_s}
        for kind, value in both
        if value is not None
    ]


def _behavior(
    down_window_s: float,
    up: Sequence[dict[str, Any]],
    down: Sequence[dict[str, Any]],
    up_window_s: int = 0,
) -> dict[str, Any]:
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": up_window_s,
            "selectPolicy": "Max",
            "policies": list(up),
        },
        "scaleDown": {
            "stabilizationWindowSeconds": round(down_window_s),
            "policies": list(down),
        },
    }


def _scaled_object(
    fleet: Fleetwide,
    behavior: dict[str, Any],
    triggers: Sequence[tuple[str, str, float]],
    modifiers: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> ConfigFile:
    """Args: ``triggers`` are names, queries of Prometheus and thresholds for each replica."""
    advanced: dict[str, Any] = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    if modifiers is not None:
        advanced["scalingModifiers"] = modifiers
    spec = {
        "scaleTargetRef": _SCALED,
        "pollingInterval": _READ_PERIOD_S,
        "minReplicaCount": fleet.least,
        "maxReplicaCount": fleet.most,
        "advanced": advanced,
        "triggers": [
            {
                "type": "prometheus",
                "name": name,
                "metricType": "AverageValue",
                "metadata": {
                    "serverAddress": _PROMETHEUS,
                    "query": query,
                    "threshold": f"{threshold:g}",
                },
            }
            for name, query, threshold in triggers
        ],
    }
    told = ("KEDA 2.15 or newer; serverAddress is that of your Prometheus.", *notes)
    return ConfigFile("scaledobject.yaml", told, _object("keda.sh/v1alpha1", "ScaledObject", spec))


def _keda_waiting(values: Values, fleet: Fleetwide) -> ConfigFile:
    behavior = _behavior(
        values["down_window_s"], _policy(4, 100, 15), _policy(None, 100, _READ_PERIOD_S)
    )
    return _scaled_object(
        fleet, behavior, [("waiting", "sum(vllm:num_requests_waiting)", values["target"])]
    )


def _keda_epp(values: Values, fleet: Fleetwide) -> ConfigFile:
    behavior = _behavior(
        values["down_window_s"], _policy(None, 100, 15), _policy(None, 100, _READ_PERIOD_S)
    )
    queue, running = values["waiting_target"], values["running_target"]
    formula = (
        f"let demand = max(queue / {queue:g}, running / {running:g}); "
        "demand <= replicas ? demand : max(demand - (pending ?? 0), replicas)"
    )
    triggers = [
        ("queue", "sum(llm_d_epp_flow_control_queue_size)", queue),
        ("running", "sum(llm_d_epp_request_running)", running),
        ("pending", f"{_REPLICAS} - {_READY}", 1.0),
        ("replicas", _REPLICAS, 1.0),
    ]
    return _scaled_object(fleet, behavior, triggers, _modifiers(formula))


def _modifiers(formula: str) -> dict[str, Any]:
    return {"formula": formula, "target": "1", "metricType": "AverageValue"}


def _token_aware(values: Values, fleet: Fleetwide) -> ConfigFile:
    behavior = _behavior(values["down_window_s"], _policy(1, None, 180), _policy(1, None, 300))
    tokens = 'sum(llm_d_epp_inflight_tokens{producer_name="inflight-load-producer"})'
    triggers = [
        (
            "prefill",
            f"{tokens} / {fleet.prefill_tokens_per_s:.0f} or vector(0)",
            values["queue_s"],
        ),
        ("kv", "sum(vllm:kv_cache_usage_perc) or vector(0)", values["kv_target"]),
    ]
    notes = (
        "The divisor is the prefill speed of a replica in the simulator, tokens/s. Name your "
        "namespace in both queries",
        "where several pools are scraped.",
    )
    return _scaled_object(fleet, behavior, triggers, notes=notes)


def _slo_law(values: Values, fleet: Fleetwide) -> ConfigFile:
    up, down = values["up_at"], values["down_at"]
    credit = "(ready > 0 && ready < replicas ? ready / replicas : 1)"
    formula = (
        f"saturation > {up:g} ? replicas + ceil(replicas * max(saturation * {credit} / {up:g} - 1, "
        f"0)) : (saturation < {down:g} ? replicas - floor(replicas * (1 - saturation / {down:g})) "
        ": replicas)"
    )
    triggers = [
        ("saturation", "slo_saturation", 1.0),
        ("replicas", _REPLICAS, 1.0),
        ("ready", _READY, 1.0),
    ]
    behavior = _behavior(
        values["down_window_s"], _policy(4, 100, 60), _policy(1, None, 120), up_window_s=30
    )
    return _scaled_object(
        fleet,
        behavior,
        triggers,
        _modifiers(formula),
        (
            "slo_saturation is a recording rule: avg_over_time(...[45s]) of the larger of P90 TTFT "
            "and P90 TPOT over a",
            "minute, each over its objective, at most 2 and 0 without traffic "
            "(llm-d, README.slo-aware.md).",
        ),
    )


def _hpa(values: Values, fleet: Fleetwide) -> ConfigFile:
    target = {"type": "AverageValue", "averageValue": f"{values['target']:g}"}
    pods = {"metric": {"name": "vllm:num_requests_running"}, "target": target}
    spec = {
        "scaleTargetRef": _SCALED,
        "minReplicas": fleet.least,
        "maxReplicas": fleet.most,
        "metrics": [{"type": "Pods", "pods": pods}],
        "behavior": _behavior(
            values["down_window_s"], _policy(4, 100, 15), _policy(None, 100, _READ_PERIOD_S)
        ),
    }
    notes = ("The metric comes from an adapter such as prometheus-adapter.",)
    return ConfigFile("hpa.yaml", notes, _object("autoscaling/v2", "HorizontalPodAutoscaler", spec))


def _dynamo(fleet: Fleetwide, settings: dict[str, Any], notes: tuple[str, ...]) -> ConfigFile:
    config = {
        "mode": "agg",
        "backend": "vllm",
        "min_endpoint": fleet.least,
        "max_gpu_budget": fleet.most * fleet.group,
        "decode_engine_num_gpu": fleet.group,
    }
    told = ("PlannerConfig of Dynamo.", *notes)
    return ConfigFile("dynamo_planner.yaml", told, config | settings)


def _dynamo_throughput(values: Values, fleet: Fleetwide) -> ConfigFile:
    settings = {
        "optimization_target": "sla",
        "ttft_ms": round(1e3 * fleet.ttft_slo_s),
        "itl_ms": float(f"{1e3 * fleet.tpot_slo_s:g}"),
        "enable_throughput_scaling": True,
        "enable_load_scaling": False,
        "throughput_adjustment_interval_seconds": round(values["interval_s"]),
        "load_predictor": "kalman",
    }
    note = f"Here an engine bears {fleet.requests_per_s:.3g} requests/s inside the objectives."
    return _dynamo(fleet, settings, (note,))


def _dynamo_load(values: Values, fleet: Fleetwide) -> ConfigFile:
    up, down = values["up_kv"], min(values["down_kv"], values["up_kv"])
    settings = {
        "optimization_target": "load",
        "load_adjustment_interval_seconds": _READ_PERIOD_S,
        # In per cent.
        "decode_scale_up_kv_rate": float(f"{100 * up:.3g}"),
        "decode_scale_down_kv_rate": float(f"{100 * down:.3g}"),
    }
    return _dynamo(fleet, settings, ())


def _ray_serve(values: Values, fleet: Fleetwide) -> ConfigFile:
    autoscaling = {
        "min_replicas": fleet.least,
        "max_replicas": fleet.most,
        "target_ongoing_requests": values["target"],
        "metrics_interval_s": float(_READ_PERIOD_S),
        "look_back_period_s": 30.0,
        "upscale_delay_s": values["up_delay_s"],
        "downscale_delay_s": values["down_delay_s"],
    }
    deployment = {"name": TARGET, "autoscaling_config": autoscaling}
    notes = ("The deployment's part of a Ray Serve config.",)
    return ConfigFile("ray_serve.yaml", notes, {"deployments": [deployment]})


def _aibrix(values: Values, fleet: Fleetwide) -> ConfigFile:
    spec = {
        "scalingStrategy": "KPA",
        "minReplicas": fleet.least,
        "maxReplicas": fleet.most,
        "scaleTargetRef": _SCALED,
        "metricsSources": [
            {
                "metricSourceType": "pod",
                "protocolType": "http",
                "port": "8000",
                "path": "metrics",
                "targetMetric": "gpu_cache_usage_perc",
                "targetValue": f"{values['target']:g}",
            }
        ],
    }
    made = _object("autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler", spec)
    delay = f"{round(values['down_window_s'])}s"
    made["metadata"]["annotations"] = {"autoscaling.aibrix.ai/scale-down-cooldown-window": delay}
    return ConfigFile("podautoscaler.yaml", ("AIBrix.",), made)


def _sky_serve(values: Values, fleet: Fleetwide) -> ConfigFile:
    policy = {
        "min_replicas": fleet.least,
        "max_replicas": fleet.most,
        "target_qps_per_replica": float(f"{values['load'] * fleet.requests_per_s:.3g}"),
        "upscale_delay_seconds": round(values["up_delay_s"]),
        "downscale_delay_seconds": round(values["down_delay_s"]),
    }
    return ConfigFile("sky_serve.yaml", ("SkyServe.",), {"service": {"replica_policy": policy}})


def _object(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": TARGET}, "spec": spec}


_WRITERS: dict[str, Callable[[Values, Fleetwide], ConfigFile]] = {
    STATIC: _static,
    "hpa_running": _hpa,
    "keda_waiting": _keda_waiting,
    "keda_epp": _keda_epp,
    "token_aware": _token_aware,
    "slo_law": _slo_law,
    "dynamo_throughput": _dynamo_throughput,
    "dynamo_load": _dynamo_load,
    "aibrix_kpa": _aibrix,
    "ray_serve": _ray_serve,
    "sky_serve": _sky_serve,
}
