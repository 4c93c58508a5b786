"""The command that runs a gateway in front of inference engines."""

from __future__ import annotations

from jaxserve.errors import InputError
from jaxserve.gateway.settings import GatewaySettings


def run_gateway(settings: GatewaySettings) -> None:
    """Run a gateway in front of vLLM and SGLang servers: routing, admission and measurement.

    Tokens are read from JAXSERVE_GATEWAY_TOKEN (clients) and JAXSERVE_GATEWAY_CONTROL_TOKEN.

    Args:
        settings: Which engines, and how much of everything.
    """
    try:
        from jaxserve.gateway.serve import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "jaxserve":
            raise
        raise InputError(
            f"the gateway needs {error.name}, which an extra installs: "
            "pip install 'jaxserve[gateway]'"
        ) from None
    run(settings)
