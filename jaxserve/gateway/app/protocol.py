"""HTTP connections of the gateway: limited, and known to the application that answers on them."""

from __future__ import annotations

import asyncio

from jaxserve.gateway.exchange.response import CONNECTION
from jaxserve.gateway.settings import GatewaySettings
from jaxserve.runtime.limited_http import HttpLimits, limited_protocol


def gateway_protocol(settings: GatewaySettings) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn with the limits of some settings."""
    limits = HttpLimits(settings.max_connections, settings.max_head_bytes, settings.head_s)

    class GatewayProtocol(limited_protocol(limits)):
        """Its requests carry their connection."""

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {CONNECTION: self.transport}  # type: ignore[typeddict-item]

    return GatewayProtocol
