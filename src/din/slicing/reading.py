"""What is found in a file of another form than ONNX."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from din.domain.support import NOTHING, Needs
from din.domain.tensor import TENSORS_MAX, Dim, TensorSpec
from din.errors import BadModel, BadStrategy

NAME_CHARACTERS_MAX = 512


class Read(Struct, frozen=True, kw_only=True):
    """A model that runs whole."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: int
    weights_bytes: int
    peak_bytes: int
    """Of values that live at once, as far as sizes are fixed."""
    needs: Needs = NOTHING
    backend: str
    """That is meant where nobody says which."""


def check_names(specs: Collection[TensorSpec], side: str) -> None:
    """Raises BadModel for tensors that cannot be told apart by their names, or too many."""
    names = [each.name for each in specs]
    if len(names) > TENSORS_MAX:
        raise BadModel(f"the model has {len(names)} {side}s; the limit is {TENSORS_MAX}")
    for name in names:
        if not name or len(name) > NAME_CHARACTERS_MAX:
            raise BadModel(
                f"an {side} of the model has the name {name[:40]!r}",
                hint="convert it with a name for each input and output",
            )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadModel(
            f"two {side}s of the model are called {twice!r}",
            hint="convert it with a name for each input and output",
        )


def with_shapes(
    specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int | str, ...]]
) -> tuple[TensorSpec, ...]:
    """Inputs with the sizes that the registration gives to free dims. Raises BadStrategy."""
    known = {each.name for each in specs}
    for name in shapes:
        if name not in known:
            raise BadStrategy(
                f"inputs names {name!r}, which is no input of the model",
                hint=f"the inputs are {', '.join(sorted(known))}",
            )
    return tuple(
        replace(each, shape=_settled(each, shapes[each.name])) if each.name in shapes else each
        for each in specs
    )


def _settled(spec: TensorSpec, shape: tuple[int | str, ...]) -> tuple[Dim, ...]:
    if spec.shape is None:
        return shape
    fits = len(shape) == len(spec.shape) and all(
        own is None or own == given for own, given in zip(spec.shape, shape, strict=False)
    )
    if not fits:
        raise BadStrategy(
            f"inputs gives {spec.name!r} the shape {list(shape)}, and the file "
            f"{spec.shown_shape()}",
            hint="only free sizes, shown as ?, can be given: such a file is run as it is",
        )
    return shape
