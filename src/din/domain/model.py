"""Models and their parts: manifest, slice, edge, partition."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from din.domain.encoding import Encoding
from din.domain.strategy import Compression, Rewrite, Strategy
from din.domain.support import NOTHING, Needs
from din.domain.tensor import TensorSpec

GATEWAY: Final = -1
"""The gateway as the producer of inputs and the consumer of outputs in an Edge."""

SliceKind = Literal["model", "before", "after"]
"""`before` and `after` are adapters (photo -> tensors, heads -> boxes). They are slices like the
others: they are placed, loaded in a worker and fed along edges; /v2 leaves them out."""

Role = Literal["model", "weights"]
"""What a worker does with a file: `model` is an ONNX file, of which a slice has one; `weights` is
what tensors of that file refer to by its SHA256."""

ARTIFACTS_MAX: Final = 32
"""Files of one slice: a worker gets all of them beside one message."""

SLICE_ENCODING: Final = "din-slice-3"
"""Version of the encoding that slice ids are taken over; another encoding gives other ids."""

CONTEXT_TENSOR: Final = "din.context"
"""UINT8 tensor of JSON that `before` hands to `after` (scale, padding, size)."""


class AdapterSpec(Struct, frozen=True):
    """An adapter by name with its options, as the manifest writes it."""

    name: str
    options: dict[str, object] = {}


class Artifact(Struct, frozen=True):
    """Bytes by their SHA256."""

    sha256: str
    nbytes: int
    role: Role = "model"
    plain_sha256: str = ""
    """Of what is inside, when the file is sealed (docs/protocol/sealed-slice.md)."""
    plain_nbytes: int = 0

    @property
    def name(self) -> str:
        """SHA256 of what is inside: a model names its weights by it, sealed or not."""
        return self.plain_sha256 or self.sha256

    @property
    def is_sealed(self) -> bool:
        """Whether the file is encrypted."""
        return self.plain_sha256 != ""


class Slice(Struct, frozen=True, kw_only=True):
    """One part of a model that runs in one worker."""

    index: int
    slice_id: str
    """SHA256 over the canonical encoding of graph and tensor digests: same content, same id."""
    name: str
    kind: SliceKind = "model"
    artifacts: tuple[Artifact, ...] = ()
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str = "onnxruntime"
    adapter: AdapterSpec | None = None
    operators: int = 0
    bytes_weights: int = 0
    memory_mib: int = 0
    """Expected resident memory of one worker that holds it."""
    flops: int = 0
    opset: int = 0
    needs: Needs = NOTHING
    """What it asks of its backend; nothing = not known, so that its node finds out."""
    is_random: bool = False
    """Holds an operator such as RandomNormal: running it twice gives two answers."""
    device_type: str | None = None
    labels: dict[str, str] = {}
    is_sensitive: bool = False
    """Only for nodes to which the gateway gave the label `trust: high`."""
    nodes: tuple[str, ...] = ()
    """Names or ids: only these may hold it; empty = any."""
    not_nodes: tuple[str, ...] = ()
    """Names or ids: these may not."""
    compression: Compression = "none"
    """Of what crosses between it and slices on other machines."""

    @property
    def is_sealed(self) -> bool:
        """Whether a file of it is encrypted, so that a node needs a grant of the gateway."""
        return any(artifact.is_sealed for artifact in self.artifacts)


class Edge(Struct, frozen=True, array_like=True):
    """A tensor, who makes it and who needs it: indexes into `Partition.slices`, or GATEWAY.

    From GATEWAY to GATEWAY goes an input that is an output as well: it never leaves the gateway.
    """

    tensor: str
    producer: int
    consumers: tuple[int, ...]


class Partition(Struct, frozen=True, kw_only=True):
    """A model cut into slices. `edges` serve /v2; `adapted_edges` run through the adapters."""

    slices: tuple[Slice, ...]
    edges: tuple[Edge, ...]
    adapted_edges: tuple[Edge, ...] = ()
    """Empty when the model has no adapter."""


class Tiles(Struct, frozen=True, kw_only=True):
    """How batches of a model that stays whole are spread over its replicas; one of the two."""

    rows_max: int | None = None
    ways: int | None = None
    split: tuple[str, ...] = ()
    """Inputs whose first size is the batch; the others go to every shard."""


class ModelManifest(Struct, frozen=True, kw_only=True):
    """What is registered: identity, signature and how it shall be run."""

    model_id: str
    """NFC-normalised text of 1..128 characters without '/' or control characters."""
    version: str
    """Decimal counter as text: "1", "2", ... per model_id."""
    source_sha256: str
    """Of the ONNX file as the user gave it."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    adapted_inputs: tuple[TensorSpec, ...] = ()
    adapted_outputs: tuple[TensorSpec, ...] = ()
    backend_options: dict[str, str] = {}
    """`optimisation` = off | basic | extended | all; `threads` = intra-op threads; ..."""
    workers: int = 1
    """Workers per replica."""
    replicas_max: int = 2
    is_encrypted: bool = False
    """Its files are sealed wherever they lie."""
    is_cut_by_din: bool = False
    """True when no node could hold the whole, so DIN chose the cuts."""
    tiles: Tiles | None = None
    """None = a batch is answered by one replica."""
    tenant: str = "default"
    """Of the key that registered it first; `default` is shared by all."""
    precision: Literal["exact", "fp16", "uint8"] = "exact"
    """The least precise way in which a tensor crosses between its slices."""
    compression: Compression = "none"
    """Of tensors that go from a slice on one machine to a slice on another."""


MODEL_FILE: Final = ""
"""Stands for the model's own file among its files; those beside it go by their location."""

EXTERNAL_FILES_MAX: Final = 1024
"""Beside one model: some exporters write one for each weight."""


class ExternalFile(Struct, frozen=True, kw_only=True):
    """A file beside the model that holds weights."""

    path: str
    sha256: str


class CarveRequest(Struct, frozen=True, kw_only=True, tag_field="ask", tag="carve"):
    """What the carver is asked to do with one model file."""

    model_path: str
    source_sha256: str = ""
    """Of that file; empty = not known, so that the carver reads it once more."""
    external: dict[str, ExternalFile] = {}
    """By the location that the model gives: the carver opens no path that a model names."""
    as_is: tuple[str, ...] = ()
    """Which of these files, MODEL_FILE among them, nodes could fetch as they are."""
    output_path: str
    """Folder for slices, each written as `<sha256>`."""
    room_bytes: int | None = None
    """How much may be written to that folder; None = as much as its disk takes."""
    is_dry_run: bool = False
    """Write nothing: only the answer is wanted."""
    output_fd: int = -1
    """A socket that takes slices as memory files instead: nothing is written to a disk then."""
    strategy: Strategy = Strategy()
    input_shapes: dict[str, tuple[int | str, ...]] = {}
    memory_mib_max: int | None = None
    """When the strategy says no place: cut where the crossings are smallest, so that each fits."""
    assignment: tuple[int, ...] = ()
    """Slice of each operator of the model's CutTable, in its order; comes before all the others."""
    encodings: dict[str, Encoding] = {}
    """Of tensors between slices; what is not named crosses as it is."""


class AnalyseRequest(Struct, frozen=True, kw_only=True, tag_field="ask", tag="analyse"):
    """The carver's other task: say what cuts can be chosen from, write nothing."""

    model_path: str
    source_sha256: str = ""
    external: dict[str, ExternalFile] = {}
    input_shapes: dict[str, tuple[int | str, ...]] = {}
    ranges: tuple[str, ...] = ()
    """Of the strategy, "from:to": found in the graph for it."""
    rewrite: tuple[Rewrite, ...] = ()
    """Of the strategy: what is cut is the model as it is changed."""


class CutFacts(Struct, frozen=True, kw_only=True):
    """What crosses one boundary of the partition, for people and planner."""

    after_slice: int
    tensors: tuple[str, ...]
    nbytes: int | None
    """None when a shape is not known before a run."""
    nbytes_exact: int | None = None
    """Without encodings; the same where there are none."""


class CarveAnswer(Struct, frozen=True, kw_only=True):
    """What the carver found and wrote."""

    source_sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    slices: tuple[Slice, ...]
    """Model slices only, in order; the gateway adds adapters."""
    edges: tuple[Edge, ...]
    cuts: tuple[CutFacts, ...]
    operators: int
    opset: int
    ir_version: int
    assignment: tuple[int, ...] = ()
    """Slice of each dynamic operator, in topological order."""
    unused_inputs: tuple[str, ...] = ()
    exact_only: dict[str, str] = {}
    """Tensors between slices that may not be encoded, and why."""
    warnings: tuple[str, ...] = ()
