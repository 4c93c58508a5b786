"""Models by name: those of ``data/models``, whose files say where sizes come from, and the user's
own."""

import functools
import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.machine.architecture import LargeModel, is_large, large_model
from jaxserve.sim.machine.hardware import LlmModel
from jaxserve.sim.machine.model_config import own_architecture


@functools.cache
def model_names() -> tuple[str, ...]:
    """Names that ``load_model`` accepts."""
    return tuple(sorted(path.stem for path in (data_dir() / "models").glob("*.json")))


def load_model(name: str) -> LlmModel:
    """Model ``name`` from ``data/models``, or from a file of the user's own by its path, see
    ``jaxserve.sim.machine.model_config``.

    Raises:
      InputError: unknown name, or a size in the file is missing or not positive.
    """
    name = checks.known_name(name, model_names())
    if name in model_names():
        where = f"models/{name}.json"
        sizes = JsonObject(load_json(where), where).inside("architecture")
    elif isinstance(name, str) and Path(name).suffix == ".json" and Path(name).is_file():
        sizes, name = own_architecture(Path(name)), _own_name(Path(name))
    else:
        checks.refuse_name("model", name, model_names(), " or the path of a JSON file")
    values: dict[str, Any] = {"name": name, "tied_embeddings": bool(sizes.get("tied_embeddings"))}
    if sizes.get("context_tokens") is not None:
        values["context_tokens"] = sizes.whole("context_tokens", 1)
    for field in fields(LlmModel):
        if field.name not in values and field.default is MISSING:
            values[field.name] = sizes.whole(field.name, 1)
    dense = LlmModel(**values)
    if not is_large(sizes):
        return dense
    model = large_model(dense, sizes)
    _warn_of_assumptions(model)
    return model


def _warn_of_assumptions(model: LargeModel) -> None:
    """Says which times of a model rest on no measurement."""
    unmeasured = []
    if model.linear is not None:
        unmeasured.append(f"{model.linear.layers} layers with a state (drafts hold none)")
    if model.sparse is not None:
        unmeasured.append(f"attention to {model.sparse.tokens} selected tokens and its indexer")
    if unmeasured:
        warnings.warn(
            f"model {model.name}: times of {' and '.join(unmeasured)} are an assumption, no "
            "measured kernel: their bytes and operations at the rates of full attention",
            InputWarning,
            stacklevel=1,  # one place, so that a command says it once
        )


def _own_name(path: Path) -> str:
    """Name of a user's own model: that of its file, or of its folder where the file is a
    config.json."""
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    if name in model_names():
        raise InputError(f"model file {path} has the name of a packaged model; give it its own")
    return name
