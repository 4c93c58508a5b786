"""A language model on this machine that says what a test wants it to say."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jaxserve.spaces import DEFAULT_ACTION

KEY = "sk-secret-of-the-test"
GOOD = json.dumps({"reason": "calm", **DEFAULT_ACTION, "batch_cap": 96})
Answer = str | int | Callable[[dict[str, Any]], Any]


class Model:
    """Answers in turn: a text is streamed, a number is an HTTP status; the last one repeats."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [GOOD]
        self.asked: list[dict[str, Any]] = []
        self.pause_s = 0.0
        self.counts_tokens = True
        self.calls_tools = False
        self.finish = "stop"
        self.broken: bytes | None = None
        """sent after the first chunk, in place of the rest; nothing cuts the connection."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.asked.append(body | {"key": self.headers["Authorization"]})
                answer = model.answers.pop(0) if len(model.answers) > 1 else model.answers[0]
                if callable(answer):
                    answer = answer(body)
                if isinstance(answer, tuple):
                    answer, said = answer
                else:
                    said = f"no: {KEY}"
                if isinstance(answer, int):
                    content = json.dumps({"error": {"message": said}}).encode()
                    self.send_response(answer)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                if model.broken == b"":
                    # More is announced than comes.
                    self.send_header("Content-Length", "100000")
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.stream(answer)

            def stream(self, answer: Any) -> None:
                for chunk in model.chunks(answer):
                    self.wfile.write(b"data: " + chunk + b"\n\n")
                    if model.broken is not None:
                        self.wfile.write(b"data: " + model.broken + b"\n\n")
                        return
                    self.wfile.flush()
                    time.sleep(model.pause_s)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def chunks(self, text: str) -> Iterator[bytes]:
        base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
        for first in range(0, len(text), 40):
            piece = text[first : first + 40]
            call = {"index": 0, "function": {"arguments": piece}}
            said = {"tool_calls": [call]} if self.calls_tools else {"content": piece}
            delta = {"index": 0, "delta": said}
            yield json.dumps(base | {"choices": [delta | {"finish_reason": None}]}).encode()
        ended = {"index": 0, "delta": {}, "finish_reason": self.finish}
        yield json.dumps(base | {"choices": [ended]}).encode()
        if self.counts_tokens:
            usage = {"prompt_tokens": 80, "completion_tokens": 20, "total_tokens": 100}
            yield json.dumps(base | {"choices": [], "usage": usage}).encode()
        yield b"[DONE]"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
