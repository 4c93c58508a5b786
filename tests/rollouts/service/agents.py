"""Agents of a few lines of Python."""

from __future__ import annotations

import sys
from typing import Any

SPEAK = """
import json, os, urllib.request as u
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
key["content-type"] = "application/json"
body = {"model": "stub", "messages": [{"role": "user", "content": os.environ["INSTRUCTION"]}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
u.urlopen(u.Request(url, json.dumps(body).encode(), key)).read()
"""


def python(code: str, *arguments: str) -> dict[str, Any]:
    """An agent of a few lines."""
    return {"command": [sys.executable, "-c", code, *arguments]}
