"""Control of one engine's knobs, used by the mock engine and by the plug-in for vLLM.

The plug-in's wheel has its own copy (``jaxserve_vllm/engine_control`` is a link to this folder), so
nothing here imports the rest of jaxserve: modules need the standard library, and ``routes``
Starlette.
"""
