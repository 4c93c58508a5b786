"""A plug-in for vLLM: knobs that can be turned while vLLM serves, and an emulated device.

Only ``scheduler``, ``worker`` and their tools import vLLM, and only ``endpoint`` imports FastAPI.
"""

VLLM_FROM, VLLM_BEFORE = (0, 28), (0, 33)
"""First tested release of vLLM, and first untested one: the scheduler interface is not public."""
