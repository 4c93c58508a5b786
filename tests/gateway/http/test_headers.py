"""Headers: what passes, in both directions."""

from __future__ import annotations

from jaxserve.gateway.http.headers import client_headers, engine_headers, first_value, headers_size


def test_to_an_engine() -> None:
    """Those of the connection, of the way and of the client's credentials stay here; the engine's
    own key comes from the operator."""
    client = [
        (b"host", b"gateway"),
        (b"content-length", b"5"),
        (b"content-type", b"application/json"),
        (b"accept-encoding", b"gzip, br"),
        (b"connection", b"keep-alive, X-Mine"),
        (b"x-mine", b"1"),
        (b"upgrade", b"h2c"),
        (b"transfer-encoding", b"chunked"),
        (b"authorization", b"Bearer client"),
        (b"x-goog-api-key", b"client"),
        (b"proxy-authorization", b"client"),
        (b"x-forwarded-host", b"evil"),
        (b"x-request-id", b"7"),
        (b"x-vllm-priority", b"1"),
        (b"x-class", b"chat"),
    ]
    assert engine_headers(client, "sk", 3) == [
        ("content-type", "application/json"),
        ("x-request-id", "7"),
        ("accept-encoding", "identity"),
        ("authorization", "Bearer sk"),
        ("x-vllm-priority", "3"),
    ]
    assert ("x-vllm-priority", "1") in engine_headers(client, None, None)
    assert "authorization" not in dict(engine_headers(client, None, None))


def test_to_a_client() -> None:
    """What an engine says of its own connection, server and session is not the gateway's."""
    engine = [
        (b"Content-Type", b"text/event-stream"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close, X-Secret"),
        (b"X-Secret", b"1"),
        (b"Set-Cookie", b"a=1"),
        (b"Server", b"uvicorn"),
        (b"Retry-After", b"3"),
        (b"X-Gateway-Request-Id", b"inner"),
    ]
    passed = [(b"content-type", b"text/event-stream"), (b"retry-after", b"3")]
    assert client_headers(engine) == passed


def test_small_ones() -> None:
    """The first of several, and sizes as on the wire."""
    headers = [(b"a", b" 1 "), (b"a", b"2")]
    assert first_value(headers, b"a") == "1" and first_value(headers, b"b") is None
    assert headers_size(headers) == len(b"a:  1 \r\na: 2\r\n")
