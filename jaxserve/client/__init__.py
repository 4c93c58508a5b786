"""Clients of an environment's server.

    from jaxserve.client import ServeClient

    with ServeClient.from_url("http://localhost:7860") as env:
        observation = env.reset(task_id="bursty_workload", seed=42)
        observation, reward, done, info = env.step({"batch_cap": 96, "speculation_depth": 3})
        print(env.grade())

``AsyncServeClient`` has the same methods with ``await``. Both need the extra ``server``, or only
httpx and websockets.
"""

from jaxserve.client.async_client import AsyncServeClient, Observation
from jaxserve.client.sync_client import ServeClient
from jaxserve.client.transports import ConnectionLost, ServerError

__all__ = ["AsyncServeClient", "ConnectionLost", "Observation", "ServeClient", "ServerError"]
