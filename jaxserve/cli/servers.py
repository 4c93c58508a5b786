"""Commands that run servers: a gateway in front of inference engines, and a mock of one."""

from __future__ import annotations

from jaxserve.cli.arguments import needing
from jaxserve.gateway.settings import GatewaySettings
from jaxserve.mock_engine.settings import MockEngineSettings


def run_gateway(settings: GatewaySettings) -> None:
    """Run a gateway in front of vLLM and SGLang servers: routing, admission and measurement.

    Tokens are read from JAXSERVE_GATEWAY_TOKEN (clients) and JAXSERVE_GATEWAY_CONTROL_TOKEN. With
    --sessions and without the second one it makes one, which commands of this machine find.

    Args:
        settings: Which engines, and how much of everything.
    """
    with needing("gateway", "the gateway"):
        from jaxserve.gateway.app.serve import run
    run(settings)


def run_mock_engine(settings: MockEngineSettings) -> None:
    """Run a server with vLLM's routes and no GPU, timed by the reference simulator.

    The control endpoint reads JAXSERVE_CONTROL_TOKEN and JAXSERVE_STATIC, as vLLM with the plug-in.

    Args:
        settings: Which model on which GPU, and how it serves.
    """
    with needing("gateway", "the mock engine"):
        from jaxserve.mock_engine.serve import run
    run(settings)
