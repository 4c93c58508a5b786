"""Files of measured kernels, told apart by their columns.

Known are those of aiconfigurator (GEMM, generation and context attention; parquet or CSV) and the
three of an LLMServingSim profile.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.sim.fit import kernel_rows, layer_profile
from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.fit.kernel_rows import FORMAT, KernelRows
from jaxserve.sim.fit.layer_profile import LayerProfile
from jaxserve.sim.machine.hardware import LlmModel

_KERNEL_UNIT = "latency must be in milliseconds, for the model and the GPUs that are named"
_PROFILE_UNIT = "time_us must be in microseconds, for the model and the GPUs that are named"

_GEMM, _ATTENTION = "gemm_perf", "attention_perf"
_KERNELS = {
    "linear": _GEMM,
    "decode": "generation_attention_perf",
    "prefill": "context_attention_perf",
}
_PROFILE = ("dense", "per_sequence", "attention")
_FORMS = {
    _GEMM: kernel_rows.GEMM_COLUMNS,
    _ATTENTION: ("op_name", *kernel_rows.ATTENTION_COLUMNS),
    "dense": layer_profile.DENSE_COLUMNS,
    "per_sequence": layer_profile.PER_SEQUENCE_COLUMNS,
    "attention": layer_profile.ATTENTION_COLUMNS,
}
"""Columns by which files are told apart."""
_FORMAT_COLUMNS = ("gemm_dtype", "kv_cache_dtype")
_READ = {
    "linear": kernel_rows.linear_rows,
    "decode": kernel_rows.decode_rows,
    "prefill": kernel_rows.prefill_rows,
}


@dataclass(frozen=True)
class MeasuredKernels:
    """Measured kernel times of a model, from one or several files."""

    rows: dict[str, KernelRows]
    """rows by kind of kernel, see ``jaxserve.sim.fit.kernel_fit``."""
    unit: str
    """unit that times must have, as the end of an error."""
    source: str
    """measured system, with the engine and its version where they are known."""
    profile: LayerProfile | None = None
    """layer profile that the rows come from; None where files are of single kernels."""
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """rows in other number formats than the one that is used, by the format."""


def read_kernels(paths: Sequence[Path], model: LlmModel, tensor_parallel: int) -> MeasuredKernels:
    """Reads files of single kernels or of a layer profile.

    Raises:
      InputError: a file is unreadable or of no known kind, or one is missing or too many.
    """
    found: dict[str, Path] = {}
    formats: Counter[str] = Counter()
    said: dict[str, set[str]] = {"device": set(), "framework": set(), "version": set()}
    for path in paths:
        columns = read_columns(path)
        form = _form(path, columns)
        if form in found:
            raise InputError(f"{found[form]} and {path} are both {form}; name one of them")
        found[form] = path
        for name in {*_FORMAT_COLUMNS} & {*columns}:
            formats.update(columns[name].astype(str).tolist())
        for name, values in said.items():
            values |= {*columns[name].astype(str)} if name in columns else set()
    if len(said["device"]) > 1:
        raise InputError(f"the kernels are of several GPUs: {', '.join(sorted(said['device']))}")
    if {*found} == {*_KERNELS.values()}:
        rows = {
            kind: _READ[kind](found[form], model, tensor_parallel)
            for kind, form in _KERNELS.items()
        }
        engine = " ".join(", ".join(sorted(said[name])) for name in ("framework", "version"))
        return MeasuredKernels(
            _in_layers(rows, model.layers),
            _KERNEL_UNIT,
            f"kernels of {engine}".strip(),
            left_out={name: count for name, count in formats.items() if name != FORMAT},
        )
    if {*found} == {*_PROFILE}:
        profile = LayerProfile.read(*(found[form] for form in _PROFILE))
        rows = _in_layers(profile.rows(model.layers), model.layers)
        return MeasuredKernels(rows, _PROFILE_UNIT, "a layer profile", profile)
    raise InputError(
        f"the files are {', '.join(sorted(found))}; needed are {', '.join(_KERNELS.values())}, or "
        f"{', '.join(_PROFILE)} of a layer profile"
    )


def _in_layers(rows: dict[str, KernelRows], layers: int) -> dict[str, KernelRows]:
    """``rows`` whose errors are relative to the layer that has the kernel, or to all layers where
    it is the output head: each part of an iteration counts as much as its share of it."""
    linear = rows["linear"]
    if not len(linear.size):
        return rows
    layer_s = linear.seconds.copy()
    if "elementwise" in rows:
        layer_s += rows["elementwise"].seconds

    def beside_s(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        within_s = np.interp(tokens, linear.size, layer_s)
        return within_s * np.maximum(tokens / linear.size[-1], 1.0)

    found = dict(rows)
    for kind in {*rows} & {"elementwise", "head", "decode", "prefill"}:
        each = rows[kind]
        tokens = each.size * each.length if kind == "prefill" else each.size
        if kind == "elementwise":
            whole_s = layer_s
        else:
            whole_s = each.seconds + beside_s(tokens) * (layers if kind == "head" else 1)
        found[kind] = dataclasses.replace(each, whole_s=whole_s)
    return found


def _form(path: Path, columns: Mapping[str, np.ndarray]) -> str:
    """Form of a file, by its columns."""
    form = next((form for form, names in _FORMS.items() if {*names} <= {*columns}), None)
    if form is None:
        known = "; ".join(f"{form}: {', '.join(names)}" for form, names in _FORMS.items())
        raise InputError(
            f"kernel file {path} has the columns {', '.join(columns)}, which are of no known kind "
            f"({known})"
        )
    if form != _ATTENTION:
        return form
    operations = {*columns["op_name"].astype(str)}
    forms = [form for form in _KERNELS.values() if {form.removesuffix("_perf")} == operations]
    if not forms:
        raise InputError(
            f"kernel file {path} has op_name {', '.join(sorted(operations))}; it must be one of "
            "generation_attention, context_attention"
        )
    return forms[0]
