"""An agent that knows of its episode what MCP tells it: it offers the server's tools to its model,
and brings back what calls of them give, until the model calls none."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import openai
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


class Tools:
    """Tools of an MCP server, under the names that agents give them."""

    def __init__(self, name, session, listed):
        """Args: the server's name, an open session there, and its tools."""
        self._before, self._session, self.listed = f"mcp__{name}__", session, listed

    def offered(self):
        """Name, description and schema of each."""
        for tool in self.listed:
            yield self._before + tool.name, tool.description or "", tool.inputSchema

    async def call(self, name, arguments):
        """The result of a call, as text."""
        told = await self._session.call_tool(name.removeprefix(self._before), arguments)
        return "".join(part.text for part in told.content)


@asynccontextmanager
async def tools_of(name, url, token=None):
    """The tools of a server, which may ask for a token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        create_mcp_http_client(headers) as http,
        streamable_http_client(url, http_client=http) as (receiving, sending, _),
        ClientSession(receiving, sending) as session,
    ):
        await session.initialize()
        yield Tools(name, session, (await session.list_tools()).tools)


async def main(instruction, url):
    """Talks and plays."""
    model = openai.AsyncOpenAI()
    messages = [{"role": "user", "content": instruction}]
    async with tools_of("env", url, os.environ.get("ENVIRONMENT_TOKEN")) as tools:
        functions = [
            {
                "type": "function",
                "function": {"name": name, "description": about, "parameters": schema},
            }
            for name, about, schema in tools.offered()
        ]
        while True:
            answer = await model.chat.completions.create(
                model=os.environ["OPENAI_MODEL"], messages=messages, tools=functions
            )
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return
            for call in said.tool_calls:
                text = await tools.call(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
