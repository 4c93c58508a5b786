"""Stand-ins for agents of presets: their command lines and files, their clients, and no more.

Each takes the options that the real one takes in the preset, and no others. It finds the gateway,
its key, its model and its MCP servers where the real one does. It streams, in the real one's
dialect, and calls tools until the model calls none.
"""

import argparse
import asyncio
import json
import os
import sys
import tomllib
from pathlib import Path

import anthropic
import openai
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


async def codex(arguments):
    """Codex."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["exec"])
    flags = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--json")
    for flag in flags:
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("instruction")
    given = parser.parse_args(arguments)
    found = tomllib.loads((Path(os.environ["CODEX_HOME"]) / "config.toml").read_text())
    provider = found["model_providers"][found["model_provider"]]
    assert provider["wire_api"] == "responses"
    model = openai.AsyncOpenAI(
        base_url=provider["base_url"], api_key=os.environ[provider["env_key"]]
    )
    ((name, server),) = found["mcp_servers"].items()
    token = os.environ.get(server.get("bearer_token_env_var", ""))
    items = [{"role": "user", "content": given.instruction}]
    async with tools_of(name, server["url"], token) as tools:
        offered = [
            {"type": "function", "name": name, "description": about, "parameters": schema}
            for name, about, schema in tools.offered()
        ]
        while True:
            async with model.responses.stream(
                model=given.model, input=items, tools=offered, store=False
            ) as stream:
                said = await stream.get_final_response()
            items += [one.model_dump(exclude_none=True) for one in said.output]
            calls = [one for one in said.output if one.type == "function_call"]
            if not calls:
                return
            for call in calls:
                text = await tools.call(call.name, json.loads(call.arguments))
                items.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": text}
                )


if __name__ == "__main__":
    stand_in = {"claude": claude, "codex": codex}[Path(sys.argv[1]).name]
    asyncio.run(stand_in(sys.argv[2:]))
