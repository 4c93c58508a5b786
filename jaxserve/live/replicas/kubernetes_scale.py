"""Replicas as pods of a StatefulSet, by the scale subresource of Kubernetes.

Pods of a StatefulSet have stable names, so that the gateway knows the address of every place before
its pod runs; the pod with the highest number is stopped first.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import kubernetes
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError

_PATIENCE_S = 10.0


class KubernetesScale:
    """The number of pods of one StatefulSet."""

    def __init__(self, namespace: str, name: str) -> None:
        """Args: the namespace and the name of the StatefulSet.

        Raises:
          InputError: there is no configuration of a cluster, in a pod or on this machine.
        """
        try:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                kubernetes.config.load_incluster_config()
            else:
                kubernetes.config.load_kube_config(os.environ.get("KUBECONFIG"))
        except ConfigException as error:
            raise InputError(f"--kubernetes finds no cluster: {error}") from None
        self._where = f"StatefulSet {namespace}/{name}"
        self._of: dict[str, Any] = {"name": name, "namespace": namespace}
        self._api = kubernetes.client.AppsV1Api()

    async def size(self) -> int:
        """See ``Actuator``."""
        scale = await self._ask(self._api.read_namespaced_stateful_set_scale)
        return int(scale.spec.replicas or 0)

    async def resize(self, count: int) -> None:
        """See ``Actuator``."""
        if await self.size() != count:
            change = {"spec": {"replicas": count}}
            await self._ask(self._api.patch_namespaced_stateful_set_scale, body=change)

    async def _ask(self, call: Any, **arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(
                call, **self._of, **arguments, _request_timeout=_PATIENCE_S
            )
        except ApiException as error:
            raise ActuatorError(f"{self._where}: {error.status} {error.reason}") from None
        except (HTTPError, OSError) as error:
            raise ActuatorError(f"{self._where}: {type(error).__name__}") from None
