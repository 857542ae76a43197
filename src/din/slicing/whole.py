"""Files of other forms than ONNX: what they take and give, and one slice of each. Pure; the files
are looked at as `files` hands them over, and an engine reads them anew, confined as well."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from din.domain.estimates import capped, memory_mib
from din.domain.forms import FORM_BYTES, NCNN, TFLITE, Form, form_of
from din.domain.model import GATEWAY, MODEL_FILE, Artifact, CarveAnswer, CarveRequest, Edge, Slice
from din.domain.strategy import SliceSetting, Strategy, default_name
from din.errors import BadModel, BadStrategy, UsageError
from din.slicing.ncnn_param import read_ncnn
from din.slicing.reading import Read, with_shapes
from din.slicing.tflite import read_tflite

ENCODING: Final = b"din-whole-1\0"
"""Before what ids of such slices are taken over."""
READERS: Final[dict[str, Callable[[dict[str, memoryview]], Read]]] = {
    TFLITE: read_tflite,
    NCNN: read_ncnn,
}

Keep = Callable[[str], str]
"""Stores a file of the model, by its location; its SHA256."""


def form_in(files: Mapping[str, memoryview]) -> Form | None:
    """None = ONNX, or nothing that DIN knows."""
    return form_of(bytes(files[MODEL_FILE][:FORM_BYTES]))


def refuse_cuts(form: Form) -> UsageError:
    """Why such a file is looked into no further."""
    return BadModel(
        f"a {form.suffix} file runs whole on {form.backends[0]} and is not cut",
        hint="leave slicing_strategy out; what is cut, profiled or compared is an ONNX file",
    )


def take_whole(
    form: Form, files: Mapping[str, memoryview], request: CarveRequest, keep: Keep
) -> CarveAnswer:
    """One slice, whose files are the model's own. Raises BadModel, BadStrategy, TooLarge, and what
    `keep` raises."""
    setting = _setting(form, request.strategy)
    found = READERS[form.name](dict(files))
    backend = setting.backend or found.backend
    found = replace(found, inputs=with_shapes(found.inputs, request.input_shapes))
    _check_sizes(form, found)
    artifacts = tuple(
        Artifact(keep(location), len(data), "model" if location == MODEL_FILE else "weights")
        for location, data in files.items()
    )
    named = (form.name, [each.sha256 for each in artifacts], found.inputs, found.outputs)
    part = Slice(
        index=0,
        slice_id=hashlib.sha256(ENCODING + msgspec.json.encode(named)).hexdigest(),
        name=setting.name or default_name(0),
        artifacts=artifacts,
        inputs=found.inputs,
        outputs=found.outputs,
        backend=backend,
        operators=found.operators,
        bytes_weights=capped(found.weights_bytes),
        memory_mib=memory_mib(found.weights_bytes, found.peak_bytes),
        needs=found.needs,
        device_type=setting.device_type,
        labels=setting.labels,
        is_sensitive=setting.sensitive,
        nodes=setting.nodes,
        not_nodes=setting.not_nodes,
    )
    edges = (
        *(Edge(spec.name, GATEWAY, (0,)) for spec in found.inputs),
        *(Edge(spec.name, 0, (GATEWAY,)) for spec in found.outputs),
    )
    return CarveAnswer(
        source_sha256=request.source_sha256,
        inputs=found.inputs,
        outputs=found.outputs,
        slices=(part,),
        edges=edges,
        cuts=(),
        operators=found.operators,
        opset=0,
        ir_version=0,
    )


def _check_sizes(form: Form, found: Read) -> None:
    """ncnn reads as much of an input as its layers expect, whatever it is given."""
    for spec in found.inputs:
        if form.name == NCNN and spec.shape is None:
            raise BadStrategy(
                f"the .param file does not say the size of input {spec.name!r}",
                hint=f'give it in the registration: "inputs": {{"{spec.name}": [3, 224, 224]}}',
            )


def _setting(form: Form, strategy: Strategy) -> SliceSetting:
    """Where the one slice may run. Raises BadStrategy for cuts, and for an engine that takes no
    such file."""
    if len(strategy.slices) > 1 or replace(strategy, slices=(), private="") != Strategy():
        raise BadStrategy(
            f"slicing_strategy says how to cut, and a {form.suffix} file runs whole on "
            f"{form.backends[0]}",
            hint="leave it out; slices[0] may say backend, nodes, labels, sensitive",
        )
    setting = strategy.slices[0] if strategy.slices else SliceSetting()
    if setting.backend not in (None, *form.backends):
        raise BadStrategy(
            f"slices[0].backend is {setting.backend!r}, which takes no {form.suffix} file",
            hint=f"such files run on {' or '.join(form.backends)}",
        )
    return setting
