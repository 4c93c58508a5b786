"""jaxserve's side of a vLLM server: knobs that are turned while it serves, and an emulated device.

Only ``scheduler`` and ``worker`` import vLLM, and only ``endpoint`` imports FastAPI.
"""

VLLM_FROM, VLLM_BEFORE = (0, 28), (0, 33)
"""Releases of vLLM that were tried. vLLM calls the interface of schedulers not public."""
