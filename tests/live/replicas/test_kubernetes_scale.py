"""The scale subresource, against a stand-in for a cluster's API."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError
from jaxserve.live.replicas.kubernetes_scale import KubernetesScale

PATH = "/apis/apps/v1/namespaces/serving/statefulsets/engines/scale"


class Cluster(BaseHTTPRequestHandler):
    """Answers as the API of Kubernetes does for one StatefulSet."""

    replicas = 2
    asked: list[tuple[str, Any]]

    def do_GET(self) -> None:
        """Reads the scale."""
        self._answer("GET", None)

    def do_PATCH(self) -> None:
        """Changes the scale."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == PATH:
            type(self).replicas = body["spec"]["replicas"]
        self._answer("PATCH", body)

    def _answer(self, method: str, body: Any) -> None:
        self.asked.append((method, body))
        known = self.path == PATH
        content: dict[str, Any] = {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "spec": {"replicas": self.replicas},
        }
        if not known:
            content = {"kind": "Status", "status": "Failure", "code": 404}
        text = json.dumps(content).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Cluster]]:
    """A cluster that the configuration of this machine names."""

    class Own(Cluster):
        asked: list[tuple[str, Any]] = []  # noqa: RUF012

    server = HTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield Own
    server.shutdown()
    server.server_close()


def test_scale_is_read_and_patched(cluster: type[Cluster]) -> None:
    """Once for a new number, and not at all for the present one."""
    scale = KubernetesScale("serving", "engines")
    assert asyncio.run(scale.size()) == 2
    asyncio.run(scale.resize(5))
    asyncio.run(scale.resize(5))
    assert asyncio.run(scale.size()) == 5
    patches = [body for method, body in cluster.asked if method == "PATCH"]
    assert patches == [{"spec": {"replicas": 5}}]


def test_what_the_cluster_refuses(cluster: type[Cluster]) -> None:
    """One sentence with the name."""
    with pytest.raises(ActuatorError, match="StatefulSet serving/other: 404 Not Found"):
        asyncio.run(KubernetesScale("serving", "other").size())


def test_a_cluster_that_is_gone(cluster: type[Cluster]) -> None:
    """One sentence as well, and no traceback."""
    scale = KubernetesScale("serving", "engines")
    scale._api.api_client.configuration.host = "http://127.0.0.1:9"
    with pytest.raises(ActuatorError, match="StatefulSet serving/engines: "):
        asyncio.run(scale.size())


def test_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before anything begins."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="--kubernetes finds no cluster"):
        KubernetesScale("serving", "engines")
