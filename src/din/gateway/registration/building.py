"""From an order to a version that can be deployed: carved, adapted, sealed where it must be.

The rooms for what is decided before and checked after the cut (profiles, choice of cuts, encodings,
verification) lead here; `models` keeps the book of what was built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.encoding import Encoding, RewriteCheck
from din.domain.foreign import ForeignModel
from din.domain.model import AdapterSpec, CarveAnswer, CarveRequest, ModelManifest, Partition
from din.domain.profile import Verification
from din.domain.views import RegisterModel
from din.errors import BadStrategy, Internal
from din.gateway.registration.carving import Carving
from din.gateway.registration.cutting import Choice, Choosing, choice_for, choice_of, wished_nodes
from din.gateway.registration.encoding import Carve, Encoded
from din.gateway.registration.foreign import carved_foreign
from din.gateway.registration.operator_list import OPERATORS_ALLOWED, check_operators
from din.gateway.registration.partition import (
    build_partition,
    check_options,
    marked_compressed,
    marked_private,
)
from din.gateway.registration.record import (
    ModelRecord,
    adapter_of,
    manifest_of,
    notes_of,
    sources_of,
)
from din.gateway.registration.tiles import tiles_of
from din.gateway.registration.verification import UNKNOWN, Subject, faults_of, is_of_engines
from din.placement.partitioning import Chosen


class LookOver(Protocol):
    """Whether the slices of a new version compute what the whole does: `Examiner.look_over`."""

    async def __call__(self, subject: Subject) -> Verification:
        """Never raises a DinError."""
        ...


class Encode(Protocol):
    """How tensors cross between the slices of a new version: `Encoder.encode`."""

    async def __call__(self, subject: Subject, carved: CarveAnswer, carve: Carve) -> Encoded:
        """Raises BadStrategy for an encoding that loses too much."""
        ...


Adapters = tuple[AdapterSpec | None, AdapterSpec | None]
"""Before and after."""


class Compare(Protocol):
    """By how much rewrites change what a model computes: `Examiner.compare`."""

    async def __call__(self, subject: Subject) -> RewriteCheck | None:
        """None without a rewrite. Never raises a DinError."""
        ...


class Builder:
    """Builds versions; keeps nothing."""

    def __init__(
        self,
        artifacts: ArtifactFolder,
        carving: Carving,
        seals: Callable[[bool | None], bool],
        chooser: Choosing,
    ) -> None:
        """`seals`: whether a model is sealed whose registration asks so, or does not say (None)."""
        self._artifacts = artifacts
        self._carving = carving
        self.seals = seals
        self._chooser = chooser
        self.operators_allowed: tuple[str, ...] = OPERATORS_ALLOWED
        self.look_over: LookOver | None = None
        self.encode: Encode | None = None
        self.compare: Compare | None = None
        self.foreign: Callable[[RegisterModel], ForeignModel] | None = None
        """Asks what is known of the model of a server; raises NotFound, Conflict."""

    def seals_order(self, order: RegisterModel) -> bool:
        """Whether a model is sealed that is registered so: one without a file never is."""
        return not order.foreign and self.seals(order.encrypt)

    async def build(
        self,
        order: RegisterModel,
        *,
        version: str,
        digest: str,
        tenant: str,
        chosen: Chosen | None = None,
        keep_sealed: Callable[[set[str]], None],
        drop: Callable[[set[str]], None],
    ) -> ModelRecord:
        """One version. `keep_sealed` takes sources of which only the sealed form stays, `drop` what
        is not needed; `chosen` are cuts chosen already. Raises as `ModelBook.register`."""
        adapters = adapter_of(order.before, "before"), adapter_of(order.after, "after")
        is_encrypted = self.seals_order(order)
        self._check_sources(order)
        choice = choice_of(chosen) if chosen is not None else await choice_for(order, self._chooser)
        carved = await self.carve(order, choice.assignment, is_encrypted=is_encrypted)
        made = artifacts_in(carved)
        try:
            check_operators(carved.slices, self.operators_allowed)
            check_options(order.backend_options, carved)
            tiles = tiles_of(order.slicing_strategy, carved)
            subject = _subject(order, carved, adapters, tenant, choice, is_encrypted=is_encrypted)
            verification = await self._verified(subject)
            rewrite = await self.compare(subject) if self.compare is not None else None
            encoded = await self._encoded(subject, carved, choice.assignment)
            made |= (kept := artifacts_in(encoded.carved))
            if is_encrypted:
                await self._seal(sources_of(order), keep_sealed)
        except BaseException:  # who asked may have gone meanwhile
            drop(made - sources_of(order))
            raise
        drop(made - kept - sources_of(order))
        carved, partition = encoded.carved, _partition(order, encoded.carved, adapters)
        own = {"tenant": tenant, "is_encrypted": is_encrypted, "tiles": tiles}
        return ModelRecord(
            manifest=replace(_manifest(order, version, encoded, partition, choice), **own),
            partition=partition,
            cuts=carved.cuts,
            order=order,
            order_sha256=digest,
            warnings=carved.warnings,
            notes=(*choice.notes, *notes_of(carved)),
            choice=choice.facts,
            assignment=carved.assignment,
            verification=verification,
            rewrite=rewrite,
            precision=encoded.check,
        )

    async def _seal(self, sha256s: set[str], keep_sealed: Callable[[set[str]], None]) -> None:
        for sha256 in sha256s:
            await self._carving.seal_source(sha256)
        keep_sealed(sha256s)

    async def _verified(self, subject: Subject) -> Verification | None:
        """Before a version is kept, so that a wrong cut never serves. Raises Internal for one."""
        if subject.order.is_dry_run or self.look_over is None:
            return None
        if not subject.order.verify:
            return Verification(state=UNKNOWN, summary="the registration switched verifying off")
        found = await self.look_over(subject)
        if found.report is not None and is_of_engines(found.report):
            raise BadStrategy(
                f"an engine is refused for its slice: {found.summary}",
                hint="name another backend for it in `backend_map`; --no-verify takes it as it is",
            )
        if found.report is not None and faults_of(found.report):
            raise Internal(
                f"this cut is wrong and was not registered: {found.summary}",
                hint="cut elsewhere, and please report it with the model: no cut may change what "
                "a model computes",
            )
        return replace(found, report=None)

    def _check_sources(self, order: RegisterModel) -> None:
        for sha256 in sources_of(order):
            if self._artifacts.sealed_file(sha256) is None:
                self._artifacts.file(sha256)  # raises NotFound for what was not uploaded

    async def _encoded(
        self, subject: Subject, carved: CarveAnswer, assignment: tuple[int, ...]
    ) -> Encoded:
        order = subject.order
        if order.slicing_strategy.precision == "exact" or self.encode is None:
            return Encoded(carved, None)

        async def carve(encodings: dict[str, Encoding]) -> CarveAnswer:
            return await self.carve(
                order, assignment, is_encrypted=subject.is_encrypted, encodings=encodings
            )

        return await self.encode(subject, carved, carve)

    async def carve(
        self,
        order: RegisterModel,
        assignment: tuple[int, ...] = (),
        *,
        is_encrypted: bool,
        encodings: dict[str, Encoding] | None = None,
    ) -> CarveAnswer:
        """Slices as the order and the assignment want them. Raises as the carver."""
        if order.foreign:
            assert self.foreign is not None, "connected before the first order"
            return carved_foreign(order, self.foreign(order))
        return await self._carving.carve(
            CarveRequest(
                model_path="",
                output_path="",
                strategy=order.slicing_strategy,
                input_shapes=order.inputs,
                assignment=assignment,
                encodings=encodings or {},
            ),
            order.source_sha256,
            order.external,
            is_sealed=is_encrypted,
        )


def artifacts_in(carved: CarveAnswer) -> set[str]:
    """Every file of the slices."""
    return {artifact.sha256 for part in carved.slices for artifact in part.artifacts}


def _manifest(
    order: RegisterModel, version: str, encoded: Encoded, partition: Partition, choice: Choice
) -> ModelManifest:
    return replace(
        manifest_of(order, order.model_id, version, encoded.carved, partition),
        precision=encoded.check.kind if encoded.check is not None else "exact",
        compression=order.slicing_strategy.compression,
        is_cut_by_din=choice.facts is not None and order.slicing_strategy.is_uncut,
    )


def _partition(order: RegisterModel, carved: CarveAnswer, adapters: Adapters) -> Partition:
    strategy = order.slicing_strategy
    partition = marked_private(build_partition(carved, *adapters), strategy.private)
    return marked_compressed(partition, strategy.compression)


def _subject(
    order: RegisterModel,
    carved: CarveAnswer,
    adapters: Adapters,
    tenant: str,
    choice: Choice,
    *,
    is_encrypted: bool,
) -> Subject:
    partition = _partition(order, carved, adapters)
    return Subject(
        order=order,
        slices=tuple(part for part in partition.slices if part.kind == "model"),
        edges=partition.edges,
        inputs=carved.inputs,
        is_encrypted=is_encrypted,
        tenant=tenant,
        wished=wished_nodes(choice.facts),
    )
