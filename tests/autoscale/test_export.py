"""Rules as configuration files of the systems that run them."""

from __future__ import annotations

import pytest
import yaml

from jaxserve.autoscale.answer import AutoscaleAnswer, RuleResult
from jaxserve.autoscale.export import config_file
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.setting import KINDS, STATIC, RuleSetting

FLEET = Fleetwide(
    window_s=15.0,
    most=8,
    least=2,
    group=4,
    requests_per_s=2.5,
    prefill_tokens_per_s=12_000.0,
    kv_tokens=200_000.0,
    ttft_slo_s=1.5,
    tpot_slo_s=0.04,
)


def result(kind: str) -> RuleResult:
    """Figures of a rule with its defaults."""
    values = (3.0,) if kind == STATIC else RuleSetting.default(kind).values
    return RuleResult(kind, values, True, 0.97, 0.96, 0.98, 100.0, 2.5, 250.0, 3.0, 0.01)


def written(kind: str) -> tuple[str, str, dict]:
    """Name, text and content of the file of a winner."""
    row = result(kind)
    answer = AutoscaleAnswer(0.95, 8, 4, 2.5, 30.0, 20.0, 2.1, 5, result(STATIC), (row,), row, {})
    name, text = config_file(answer, FLEET)
    return name, text, yaml.safe_load(text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_a_file_that_says_where_it_comes_from(kind: str) -> None:
    """The file is YAML, and its comment names the rule and what it reached."""
    name, text, content = written(kind)
    assert name.endswith(".yaml")
    assert text.startswith(f"# Rule {kind}, tuned on 30.0 h of recorded traffic: 97.0%")
    assert content


def test_the_hpa_is_one_of_kubernetes() -> None:
    """Kubernetes' own schema takes it, and the numbers are the rule's."""
    validate = pytest.importorskip("kubernetes_validate")
    _, _, content = written("hpa_running")
    validate.validate(content, "1.31", strict=True)
    spec = content["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 8)
    assert spec["metrics"][0]["pods"]["target"]["averageValue"] == "4"
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


@pytest.mark.parametrize("kind", ["keda_waiting", "keda_epp", "token_aware", "slo_law"])
def test_the_behavior_of_a_scaled_object_is_one_of_kubernetes(kind: str) -> None:
    """KEDA hands its behavior to an HPA, whose schema takes it; every trigger has a query and a
    threshold as text, as KEDA wants them."""
    validate = pytest.importorskip("kubernetes_validate")
    _, _, hpa = written("hpa_running")
    _, _, content = written(kind)
    assert content["kind"] == "ScaledObject"
    advanced = content["spec"]["advanced"]
    hpa["spec"]["behavior"] = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    validate.validate(hpa, "1.31", strict=True)
    for trigger in content["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"
        assert isinstance(trigger["metadata"]["threshold"], str)
        assert trigger["metadata"]["query"]


@pytest.mark.parametrize(("kind", "numbers"), [("slo_law", "0.55 0.4"), ("keda_epp", "1; 16)")])
def test_laws_are_written_as_formulas_of_their_triggers(kind: str, numbers: str) -> None:
    """KEDA's formula names the triggers, and has the numbers of the rule."""
    _, _, content = written(kind)
    formula = content["spec"]["advanced"]["scalingModifiers"]["formula"]
    for trigger in content["spec"]["triggers"]:
        assert trigger["name"] in formula
    assert all(number.strip(";") in formula for number in numbers.split())


def test_dynamos_planner_counts_gpus() -> None:
    """The budget is in GPUs, thresholds are in per cent, objectives in milliseconds."""
    _, _, content = written("dynamo_load")
    assert content["max_gpu_budget"] == 32
    assert content["decode_scale_up_kv_rate"] == 100.0
    assert content["decode_scale_down_kv_rate"] == 60.0
    _, _, content = written("dynamo_throughput")
    assert (content["ttft_ms"], content["itl_ms"]) == (1500, 40.0)


def test_ray_takes_the_autoscaling_config() -> None:
    """Ray Serve's own model of the config takes it, where Ray is installed."""
    config = pytest.importorskip("ray.serve.config")
    _, _, content = written("ray_serve")
    made = config.AutoscalingConfig(**content["deployments"][0]["autoscaling_config"])
    assert made.target_ongoing_requests == 2.0
    assert made.downscale_delay_s == 600.0
