"""An agent: plays the episode that it was given, a window for each answer of the model.

It needs nothing but Python. Its model answers with the tool call that the request's field ``stub``
asks the test's engine for.
"""

import json
import os
import sys
import urllib.request


def post(url, body, headers=None):
    """The JSON of an answer."""
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    with urllib.request.urlopen(request, timeout=300.0) as answer:
        return json.load(answer)


def main(instruction, windows):
    """Plays so many windows."""
    model = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    session = os.environ["ENVIRONMENT_SESSION_ID"]
    messages = [{"role": "user", "content": instruction}]
    for window in range(windows):
        knobs = {"batch_cap": 96 - window % 2, "speculation_depth": 2}
        stub = {"reply": "", "calls": ["step"], "arguments": json.dumps(knobs)}
        stub["turn"] = f"{window}_"
        body = {"model": "stub", "messages": messages, "stub": stub}
        said = post(model, body, key)["choices"][0]["message"]
        call = said["tool_calls"][0]
        action = json.loads(call["function"]["arguments"])
        told = post(
            os.environ["ENVIRONMENT_URL"] + "/step", {"action": action, "session_id": session}
        )
        kept = {"step_index": told["observation"]["step_index"], "reward": told["reward"]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(kept)}
        messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
        if told["done"]:
            break


main(sys.argv[1], int(sys.argv[2]))
