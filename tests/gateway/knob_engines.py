"""Engines whose knobs are turned: vLLM with the plug-in, and SGLang as its 0.5.23 answers."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.gateway.stub_engine import StubEngine

VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1000.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 200.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
"""


def knob(most: float, least: float = 1, **fields: Any) -> dict[str, Any]:
    """One that the plug-in offers, at its static value."""
    return {"offered": True, "now": most, "static": most, "least": least, "most": most, **fields}


class PluginEngine(StubEngine):
    """vLLM with ``jaxserve-vllm``. The fields below make it misbehave."""

    def __init__(self) -> None:
        routes = [
            Route("/jaxserve/control", self._control, methods=["GET", "PUT", "DELETE"]),
            Route("/metrics", self._metrics),
        ]
        super().__init__(more=routes)
        self.knobs: dict[str, dict[str, Any]] = {
            "batch_cap": knob(64),
            "token_budget": knob(2048),
            "kv_budget_fraction": knob(1.0, 0.2),
            "speculation_depth": {"offered": False, "reason": "it was started without a drafter"},
            "quantization_tier": {"offered": False, "reason": "one set of weights"},
            "prefill_decode_split": {"offered": False, "reason": "roles are fixed"},
            "priority_routing": {"offered": False, "reason": "it serves in order of arrival"},
        }
        self.engine_id = "first"
        self.lies: dict[str, Any] = {}
        """what it says is in force, whatever it was told."""
        self.says: tuple[int, bytes] | None = None
        """the status and body of every answer of control."""
        self.metrics: bytes = VLLM_METRICS.encode()
        self.commands: list[tuple[str, Any]] = []
        """methods and bodies of what changes something."""
        self.tokens: list[str | None] = []
        """what it was shown."""

    def now(self, name: str) -> float:
        """What is in force."""
        return self.knobs[name]["now"]

    async def _control(self, request: Request) -> Response:
        self.tokens.append(request.headers.get("authorization"))
        if request.method != "GET":
            body = await request.body()
            self.commands.append((request.method, json.loads(body) if body else None))
        if self.says is not None:
            return Response(self.says[1], self.says[0])
        if request.method == "PUT":
            for name, value in self.commands[-1][1]["knobs"].items():
                self.knobs[name]["now"] = value
        if request.method == "DELETE":
            for one in self.knobs.values():
                if one["offered"]:
                    one["now"] = one["static"]
        shown = {
            name: one | ({"now": self.lies[name]} if name in self.lies else {})
            for name, one in self.knobs.items()
        }
        return JSONResponse({"engines": [{"engine_id": self.engine_id, "knobs": shown}]})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics)


class SglangEngine(StubEngine):
    """SGLang with its live batch cap, for each data-parallel rank."""

    def __init__(self, most: int = 48, ranks: int = 1, **server_args: Any) -> None:
        routes = [
            Route("/server_info", self._info),
            Route("/set_internal_state", self._set, methods=["POST"]),
        ]
        super().__init__(more=routes)
        self.server_args = {"pp_size": 1, "pp_max_micro_batch_size": None, **server_args}
        started = self.server_args["pp_max_micro_batch_size"]
        self.states: list[dict[str, Any]] = [
            {"pp_max_micro_batch_size": started, "effective_max_running_requests_per_dp": most}
            for _ in range(ranks)
        ]
        self.obeys = True
        self.answers: Any = True
        """what it answers for each rank."""
        self.away = False
        """whether it fails every request."""
        self.caps: list[int] = []
        """that it was told."""

    @property
    def cap(self) -> int | None:
        """In force at its first rank."""
        return self.states[0]["pp_max_micro_batch_size"]

    async def _info(self, request: Request) -> Response:
        if self.away:
            return Response(status_code=503)
        return JSONResponse({**self.server_args, "internal_states": self.states})

    async def _set(self, request: Request) -> Response:
        if self.away:
            return Response(status_code=503)
        value = (await request.json())["server_args"]["pp_max_micro_batch_size"]
        self.caps.append(value)
        if self.obeys:
            for state in self.states:
                state["pp_max_micro_batch_size"] = value
        return JSONResponse([self.answers] * len(self.states))
