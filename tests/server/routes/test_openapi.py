"""The OpenAPI schema is true: real answers have the forms that it states."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from server.local import LocalServer

PLAIN = ("/list_environments",)
"""What answers in strings."""


@pytest.fixture(scope="module")
def schema(server: LocalServer) -> Any:
    return httpx.get(f"{server.url}/openapi.json", timeout=300.0).json()


def test_every_answer_is_described(schema: Any) -> None:
    """Each success has a form, and each error that of all errors; none is left open."""
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                form = answer["content"]["application/json"]["schema"]
                assert "$ref" in form.get("items", form) or path in PLAIN, (method, path, status)
                if (path, status) == ("/health", "503"):  # a probe reads the same form
                    assert form["$ref"] == "#/components/schemas/HealthAnswer"
                    continue
                assert (form.get("$ref") == "#/components/schemas/Problem") == (status >= "400")


def test_operations_have_names_of_their_own(schema: Any) -> None:
    """By which generated clients call them."""
    operations = [one for each in schema["paths"].values() for one in each.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert {"post_reset", "post_step", "get_state", "post_env_name_task"} < set(names)


def test_answers_are_as_described(http: httpx.Client, schema: Any) -> None:
    """Of every route of ours, successes and errors; and a HEAD has the headers of its GET."""

    def check(method: str, url: str, status: int = 200, /, **body: Any) -> Any:
        where = url.replace("{env_name}", "jaxserve")
        answer = http.request(method, where, json=body if method == "POST" else None)
        assert answer.status_code == status, answer.text
        responses = schema["paths"][url.partition("?")[0]][method.lower()]["responses"]
        form = responses[str(status)]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**form, "components": schema["components"]})
        return answer.json()

    session_id = check("POST", "/reset", task_id=1, seed=3)["session_id"]
    own = {"session_id": session_id}
    check("POST", "/step", action={"batch_cap": 64}, **own)
    check("POST", "/step_many", steps=[own | {"action": {}}])
    check("POST", "/agent", agent="default", windows=2, **own)
    check("POST", "/grader", **own)
    for path in ("/state", "/observation", "/episode_log"):
        check("GET", f"{path}?session_id={session_id}")
    for path in ("/tasks", "/info", "/runtime", "/health", "/schema", "/metadata"):
        check("GET", path)
        assert http.head(path).status_code == 200
        assert http.head(path).content == b""
    check("POST", "/mcp", jsonrpc="2.0", id=1, method="tools/list")
    for path, body in (
        ("tasks", {}),
        ("num_tasks", {}),
        ("task", {"index": 3}),
        ("task_range", {"start": 3, "stop": 5}),
    ):
        check("POST", f"/{{env_name}}/{path}", split="test", **body)
    check("GET", "/{env_name}/splits")
    check("POST", "/step", 422, action={"batch_cap": 0}, **own)
    check("POST", "/step", 409, action={"metadata": {"step": 0}}, **own)
    check("GET", "/state?session_id=nobody", 404)
    check("GET", "/state?session=x", 422)
