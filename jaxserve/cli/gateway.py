"""The command that runs a gateway in front of inference engines."""

from __future__ import annotations

from jaxserve.cli.arguments import needing_extra
from jaxserve.gateway.settings import GatewaySettings


def run_gateway(settings: GatewaySettings) -> None:
    """Run a gateway in front of vLLM and SGLang servers: routing, admission and measurement.

    Tokens are read from JAXSERVE_GATEWAY_TOKEN (clients) and JAXSERVE_GATEWAY_CONTROL_TOKEN.

    Args:
        settings: Which engines, and how much of everything.
    """
    with needing_extra("gateway", "the gateway"):
        from jaxserve.gateway.serve import run
    run(settings)
