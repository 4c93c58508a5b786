"""Play an environment that a server runs.

    from jaxserve.client import ServeClient

    with ServeClient.from_url("http://localhost:7860") as env:
        observation = env.reset(task_id="bursty_workload", seed=42)
        observation, reward, done, info = env.step({"batch_cap": 96, "speculation_depth": 3})
        print(env.grade())

``AsyncServeClient`` is the same with ``await``. Both need the extra ``server``, or just httpx and
websockets.
"""

from jaxserve.client.async_client import AsyncServeClient
from jaxserve.client.errors import ConnectionLost, ServerError
from jaxserve.client.observation import Observation
from jaxserve.client.sync_client import ServeClient

__all__ = ["AsyncServeClient", "ConnectionLost", "Observation", "ServeClient", "ServerError"]
