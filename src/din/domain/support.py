"""What backends can run: operators, versions, attributes. Rules as data, each with its source.

ONNX Runtime's part is what its releases say of themselves (`kernels`); of other backends only what
their makers document is held against a slice. What no rule tells is not known, and never a reason
to refuse: the node tries, and its engine has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from msgspec import Struct

from din.domain.device import parse_device_type
from din.domain.kernels import KERNELS, NEW_IN, RELEASES
from din.errors import UsageError

ONNXRUNTIME: Final = "onnxruntime"
OPEN: Final = 2**31 - 1


class Need(Struct, frozen=True, array_like=True, cache_hash=True):
    """One operator as a slice uses it; the same use by several nodes is one need."""

    operator: str
    """Of another domain than ONNX's own: with the domain before it, `com.microsoft.FusedConv`."""
    since: int
    """Version of the operator that is in force."""
    node: str
    """Name of the first node that uses it so."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Those that some rule looks at, with defaults filled in."""
    is_function: bool = False
    """ONNX says what it is made of: an engine without a kernel for it can take it apart."""


class Needs(Struct, frozen=True, array_like=True, cache_hash=True):
    """All that a slice asks of a backend."""

    opset: int = 0
    ir_version: int = 0
    operators: tuple[Need, ...] = ()


NOTHING: Final = Needs()


class Engine(NamedTuple):
    """A backend as a node has it; version "" = the node does not say."""

    backend: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.backend} {self.version}".strip()


NEWEST_ONNXRUNTIME: Final = Engine(ONNXRUNTIME, list(RELEASES)[-1])


class Lack(NamedTuple):
    """Why a backend cannot run a slice."""

    what: str
    """What is asked for."""
    why: str
    need: Need | None = None
    """None = the file's own version is too new."""


class AttributeRule(NamedTuple):
    """Values of one attribute of one operator that a backend takes, and no others."""

    backend: str
    versions: tuple[str, ...]
    """Beginnings of the versions that it was documented for."""
    operator: str
    attribute: str
    allowed: tuple[str, ...]
    source: str


class OperatorRule(NamedTuple):
    """Operators that a backend does not take."""

    backend: str
    versions: tuple[str, ...]
    refused: frozenset[str]
    source: str


_TENSORRT_84: Final = "onnx-tensorrt, docs/operators.md of TensorRT 8.4"
_REFUSED_BY_TENSORRT_84: Final = """
BitShift Compress ConcatFromSequence ConvInteger Det DynamicQuantizeLinear Hardmax IsInf
MatMulInteger MaxRoiPool MaxUnpool MeanVarianceNormalization Mod Multinomial
NegativeLogLikelihoodLoss NonZero OneHot QLinearConv QLinearMatMul RandomNormal RandomNormalLike
RoiAlign SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
Shrink SoftmaxCrossEntropyLoss SplitToSequence StringNormalizer TfIdfVectorizer Unique
"""
_MODE: Final = "coordinate_transformation_mode"
ZERO_POINT: Final = "zero_point"
"""No attribute but an input, whose datatype decides as an attribute does."""

ATTRIBUTE_RULES: Final = (
    AttributeRule(
        "cann", ("6.3",), "Resize", _MODE, ("asymmetric",), "field report on CANN 6.3 (Ascend 310P)"
    ),
    AttributeRule(
        "cann",
        ("8.", "9."),
        "Resize",
        "mode",
        ("nearest", "linear"),
        "CANN ONNX operator list, Resize: hiascend.com, atlasoxol_09_0131",
    ),
    AttributeRule(
        "tensorrt",
        ("8.4",),
        "Resize",
        _MODE,
        (
            "half_pixel",
            "pytorch_half_pixel",
            "tf_half_pixel_for_nn",
            "asymmetric",
            "align_corners",
        ),
        _TENSORRT_84,
    ),
    AttributeRule("tensorrt", ("8.4",), "Resize", "mode", ("nearest", "linear"), _TENSORRT_84),
    AttributeRule(
        "tensorrt",
        ("8.4",),
        "Cast",
        "to",
        ("FLOAT", "FLOAT16", "INT32", "INT8", "BOOL"),
        _TENSORRT_84,
    ),
    AttributeRule("tensorrt", ("8.4",), "QuantizeLinear", ZERO_POINT, ("INT8",), _TENSORRT_84),
    AttributeRule("tensorrt", ("8.4",), "DequantizeLinear", ZERO_POINT, ("INT8",), _TENSORRT_84),
)
OPERATOR_RULES: Final = (
    OperatorRule(
        "tensorrt",
        ("8.4",),
        frozenset(_REFUSED_BY_TENSORRT_84.split()),
        _TENSORRT_84,
    ),
)
OPSETS: Final[dict[tuple[str, str], tuple[int, str]]] = {
    ("tensorrt", "8.4"): (17, _TENSORRT_84),
}
"""Newest operator set that a version of a backend is documented for."""

DECIDING: Final[dict[str, tuple[str, ...]]] = {
    rule.operator: tuple(
        dict.fromkeys(each.attribute for each in ATTRIBUTE_RULES if each.operator == rule.operator)
    )
    for rule in ATTRIBUTE_RULES
}
"""Attributes that some rule looks at, by operator."""

_TOOLKITS: Final = {"cann": "cann", "tensorrt": "trt"}
"""How a device type writes a backend's version: `cann6.3`, `trt8.6`."""

ACCELERATORS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "openvino": (
        ("intel",),
        "OpenVINO runs on x86-64 and ARM processors and on Intel GPUs and NPUs "
        "(docs.openvino.ai, system requirements)",
    ),
    "tensorrt": (("cuda",), "TensorRT runs on NVIDIA GPUs"),
    "cann": (("ascend",), "CANN runs on Ascend NPUs"),
    "neuware": (("mlu",), "NeuWare runs on Cambricon accelerators"),
}
"""Beginnings of accelerators that a backend drives, and the rule in words."""


def engines_of(
    backends: Iterable[str], versions: dict[str, str], device_type: str
) -> tuple[Engine, ...]:
    """The backends of a node with their versions: as it says, or as its device type does."""
    return tuple(
        Engine(each, versions.get(each) or _toolkit_version(each, device_type))
        for each in sorted(backends)
    )


def _toolkit_version(backend: str, device_type: str) -> str:
    begin = _TOOLKITS.get(backend, "")
    try:
        toolkit = parse_device_type(device_type).toolkit
    except UsageError:
        return ""
    return toolkit.removeprefix(begin) if begin and toolkit.startswith(begin) else ""


def mispairing(backend: str, device_type: str) -> str:
    """Why a backend has nothing to do with the accelerator of a device; "" = it may, or nobody
    knows."""
    rule = ACCELERATORS.get(backend)
    try:
        accelerator = parse_device_type(device_type).accelerator
    except UsageError:
        return ""
    if rule is None or accelerator.startswith(rule[0]):
        return ""
    if not accelerator:
        return "" if backend == "openvino" else f"{rule[1]}, and this device has no accelerator"
    return f"{rule[1]}, not on {accelerator}"


def is_known(engine: Engine) -> bool:
    """Whether rules tell something of this version of a backend."""
    if engine.backend == ONNXRUNTIME:
        return _release(engine.version) in RELEASES
    rules = (*ATTRIBUTE_RULES, *OPERATOR_RULES)
    return any(_is_of(rule.backend, rule.versions, engine) for rule in rules)


@cache
def _kernels() -> dict[str, tuple[tuple[int, int], ...]]:
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for entry in KERNELS.split(";"):
        name, text = entry.split()
        ranges: list[tuple[int, int]] = []
        for each in text.split(","):
            low, dash, high = each.rstrip("+").partition("-")
            ranges.append((int(low), OPEN if each.endswith("+") else int(high if dash else low)))
        found[name] = tuple(ranges)
    return found


@cache
def _released() -> dict[str, str]:
    """First release of operators that came later than others."""
    return {name: release for release, names in NEW_IN.items() for name in names.split()}


def lacks(needs: Needs, engine: Engine) -> Iterator[Lack]:
    """All that a backend is known not to run of a slice."""
    if engine.backend == ONNXRUNTIME:
        yield from _lacks_of_onnxruntime(needs, _release(engine.version), engine)
        return
    for (backend, version), (opset, source) in OPSETS.items():
        if _is_of(backend, (version,), engine) and needs.opset > opset:
            yield Lack(f"operator set {needs.opset}", f"{engine} takes at most {opset} ({source})")
    for need in needs.operators:
        yield from _lacks_by_rules(need, engine)


def runs(needs: Needs, engines: Iterable[Engine], backend: str) -> bool:
    """Whether this backend of a node may run it; a node without the backend lacks nothing more."""
    return not any(True for each in engines if each.backend == backend for _ in lacks(needs, each))


def _is_of(backend: str, versions: tuple[str, ...], engine: Engine) -> bool:
    return backend == engine.backend and any(
        engine.version == each.rstrip(".") or engine.version.startswith(f"{each.rstrip('.')}.")
        for each in versions
    )


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _lacks_of_onnxruntime(needs: Needs, release: str, engine: Engine) -> Iterator[Lack]:
    if release not in RELEASES:
        return
    ir_version, opset = RELEASES[release]
    if needs.ir_version > ir_version:
        what = f"IR version {needs.ir_version} of ONNX"
        yield Lack(what, f"{engine} takes at most {ir_version}")
    if needs.opset > opset:
        yield Lack(f"operator set {needs.opset}", f"{engine} takes at most {opset}")
    for need in needs.operators:
        ranges = _kernels().get(need.operator)
        first = _released().get(need.operator, release)
        if ranges is not None and _minor(first) > _minor(release):
            yield Lack(need.operator, f"{engine} is older than {first}, which brought it", need)
        elif need.is_function:
            continue
        elif ranges is None:
            yield Lack(need.operator, f"{engine} has no kernel for it", need)
        elif not any(_takes(low, high, need.since) for low, high in ranges):
            what = f"{need.operator} version {need.since}"
            yield Lack(what, f"{engine} has no kernel for this version of it", need)


def _minor(release: str) -> tuple[int, ...]:
    return tuple(int(each) for each in release.split("."))


def _takes(low: int, high: int, since: int) -> bool:
    """A kernel without an end takes the very version that it was made for, and no later one."""
    return low == since or (low < since <= high and high != OPEN)


def _lacks_by_rules(need: Need, engine: Engine) -> Iterator[Lack]:
    for rule in OPERATOR_RULES:
        if need.operator in rule.refused and _is_of(rule.backend, rule.versions, engine):
            yield Lack(need.operator, f"{engine} does not take it ({rule.source})", need)
    values = dict(need.attributes)
    for each in ATTRIBUTE_RULES:
        value = values.get(each.attribute) if each.operator == need.operator else None
        if value is None or value in each.allowed:
            continue
        if _is_of(each.backend, each.versions, engine):
            what = f"{need.operator} with {each.attribute}={value}"
            yield Lack(what, f"{engine} takes {' or '.join(each.allowed)} ({each.source})", need)


def located(lack: Lack) -> str:
    """Where it is, and what is in the way."""
    return lack.why if lack.need is None else f"at node {lack.need.node!r}: {lack.why}"


def told(lack: Lack) -> str:
    """One line for people: the operator, where it is, and what is in the way."""
    if lack.need is None:
        return f"{lack.what} not supported: {lack.why}"
    return f"OP not supported: {lack.need.operator} {located(lack)}"
