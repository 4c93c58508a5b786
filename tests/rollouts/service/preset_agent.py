"""Stand-in for the agent of a preset: its command line, files and client, and no more.

The stand-in takes the options that the real agent takes in the preset, and no others. It finds the
gateway, its key, its model and its MCP servers where the real agent does, streams in its dialect,
and calls tools until the model calls none.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import anthropic
from mcp_player import tools_of


async def claude(arguments):
    """Claude Code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--verbose", action="store_true", required=True)
    parser.add_argument("--output-format", required=True, choices=["stream-json"])
    parser.add_argument("--dangerously-skip-permissions", action="store_true", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("-p", action="store_true", required=True)
    parser.add_argument("instruction")
    given = parser.parse_args(arguments)
    if os.getuid() == 0 and os.environ.get("IS_SANDBOX") != "1":
        sys.exit("--dangerously-skip-permissions cannot be used with root privileges")
    found = json.loads((Path(os.environ["CLAUDE_CONFIG_DIR"]) / ".claude.json").read_text())
    ((name, server),) = found["mcpServers"].items()
    assert server["type"] == "http"
    shown = os.path.expandvars(server.get("headers", {}).get("Authorization", ""))
    model = anthropic.AsyncAnthropic()
    messages = [{"role": "user", "content": given.instruction}]
    async with tools_of(name, server["url"], shown.removeprefix("Bearer ")) as tools:
        offered = [
            {"name": name, "description": about, "input_schema": schema}
            for name, about, schema in tools.offered()
        ]
        while True:
            async with model.messages.stream(
                model=given.model, max_tokens=1000, messages=messages, tools=offered
            ) as stream:
                said = await stream.get_final_message()
            messages.append({"role": "assistant", "content": said.content})
            calls = [block for block in said.content if block.type == "tool_use"]
            if not calls:
                return
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": await tools.call(call.name, call.input),
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    asyncio.run(claude(sys.argv[1:]))
