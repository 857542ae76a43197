"""Looks at models by probes: how long their operators take, whether their slices compute what the
whole does. Here is decided which files a probe gets, on which nodes it runs and what is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Final, Protocol

from msgspec.structs import replace

from din.domain.cuts import CutTable
from din.domain.encoding import RewriteCheck
from din.domain.forms import runs_whole
from din.domain.model import Artifact, CarveAnswer, Slice
from din.domain.node import FleetNode
from din.domain.probe import PROBED, ProbeOrder, ProfileReport, VerifyReport
from din.domain.profile import (
    DeviceClass,
    GivenTensor,
    Profile,
    ProfileItem,
    ProfileModel,
    ProfileView,
    Verification,
    VerifyModel,
    bucket_of,
    device_class_of,
)
from din.domain.strategy import Strategy
from din.domain.tensor import TensorMeta, TensorSpec, check_tensor
from din.domain.views import RegisterModel
from din.errors import BadTensor, CannotPlace, DinError, ExecutionFailed, NotFound
from din.gateway.probing.probes import Probed, ProbeJob, Probes
from din.gateway.probing.profiles import ProfileBook
from din.gateway.registration.calibration import NOTHING_GIVEN, Given
from din.gateway.registration.engines import (
    able_node,
    engines_of_slices,
    not_compared,
    on_engines,
    with_engines,
)
from din.gateway.registration.record import ModelRecord
from din.gateway.registration.rewriting import Rewriting
from din.gateway.registration.verification import (
    UNKNOWN,
    WHOLE,
    Subject,
    behind_random,
    in_order,
    merged,
    part_of,
    verdict,
    verify_order,
    windows_of,
)
from din.placement.correction import live_factor, times_for

QUICK_MS_MAX: Final = 20_000
"""What a registration waits for its verification, loading included."""
MIB: Final = 1024 * 1024


class Carve(Protocol):
    """How the whole of a model is made: as `Builder.carve`."""

    async def __call__(
        self, order: RegisterModel, assignment: tuple[int, ...] = (), *, is_encrypted: bool
    ) -> CarveAnswer:
        """Raises as the carver."""
        ...


class LivePairs(Protocol):
    """What the slices of a version compute now on nodes of a profile's class."""

    def __call__(
        self, record: ModelRecord, profile: Profile, times: Sequence[float], /
    ) -> Sequence[tuple[float, float]]:
        """Expected and measured milliseconds, for each replica that has run at the profile's
        shapes. `times`: of the operators."""
        ...


@dataclass(frozen=True)
class ExaminerRooms:
    """What an examiner uses of the gateway."""

    probes: Probes
    profiles: ProfileBook
    carve: Carve
    borrowing: Callable[[], AbstractContextManager[set[str]]]
    """Artifacts put into the set are kept until it is left."""
    fleet_nodes: Callable[[], Sequence[FleetNode]]
    wall_clock_iso: Callable[[], str]
    table: Callable[[RegisterModel], Awaitable[CutTable]]
    live_pairs: LivePairs


class Examiner:
    """Profiles and verifies. One per gateway."""

    def __init__(self, rooms: ExaminerRooms) -> None:
        self._rooms = rooms
        self._rewriting = Rewriting(self, rooms.wall_clock_iso)

    # Profiles.

    async def profile(self, record: ModelRecord, asked: ProfileModel) -> ProfileView:
        """Of one node, or of one node of each class. Raises NotFound, CannotPlace without any node,
        BadTensor for given inputs; what one node cannot do stands in its item."""
        subject = Subject.of(record)
        given = given_of(asked.inputs, subject.inputs)
        shapes = asked.shapes | {each.name: each.shape for each in asked.inputs}
        nodes = self._one_of_each(asked.node)
        with self._rooms.borrowing() as made:
            whole = await self.whole(subject, made)
            order = ProbeOrder(
                kind="profile",
                parts=(replace(part_of(whole), index=-1),),
                shapes=asked.shapes,
                rounds=asked.rounds,
                milliseconds_max=asked.timeout_ms // 8,
            )
            job = self._job(subject, order, (whole,), given)
            items = [await self._item(subject, job, node, shapes, asked) for node in nodes]
        items = [replace(each, live_factor=await self._live_factor(record, each)) for each in items]
        manifest = record.manifest
        return ProfileView(model_id=manifest.model_id, version=manifest.version, items=tuple(items))

    def _one_of_each(self, wanted: str | None) -> tuple[FleetNode, ...]:
        """Ready nodes that can run a model: the one that is asked for, or the healthiest of each
        class."""
        ready = [
            node
            for node in self._rooms.fleet_nodes()
            if node.status == "ready" and PROBED in node.profile.backends
        ]
        if wanted is not None:
            found = [each for each in ready if wanted in (each.profile.node_id, each.profile.name)]
            if not found:
                raise self._cannot_ask(wanted, ready)
            return tuple(found[:1])
        if not ready:
            raise CannotPlace(
                f"no node is ready that has the backend {PROBED}",
                hint="start one with `din node start`, or see `din node list`",
            )
        best: dict[DeviceClass, FleetNode] = {}
        for node in ready:
            device = device_class_of(node.profile, PROBED)
            if device not in best or node.health_score > best[device].health_score:
                best[device] = node
        return tuple(best[device] for device in sorted(best))

    def _cannot_ask(self, wanted: str, ready: Sequence[FleetNode]) -> DinError:
        names = ", ".join(sorted(each.profile.name for each in ready)) or "none"
        hint = f"nodes that can: {names}"
        for node in self._rooms.fleet_nodes():
            if wanted in (node.profile.node_id, node.profile.name):
                if node.status != "ready":
                    return CannotPlace(f"node {wanted!r} is {node.status}, not ready", hint=hint)
                return CannotPlace(f"node {wanted!r} has no backend {PROBED}", hint=hint)
        return NotFound(f"no node is called {wanted!r}", hint=hint)

    async def _item(
        self,
        subject: Subject,
        job: ProbeJob,
        node: FleetNode,
        shapes: Mapping[str, tuple[int, ...]],
        asked: ProfileModel,
    ) -> ProfileItem:
        rooms = self._rooms
        device, bucket = device_class_of(node.profile, PROBED), bucket_of(shapes)
        source, options = subject.order.source_sha256, dict(job.backend_options)
        item = ProfileItem(
            device=device,
            node=node.profile.name,
        )
        stored = None
        if not asked.is_fresh:
            stored = await rooms.profiles.find(source, device, bucket, options)
        if stored is not None:
            return replace(item, profile=stored, is_stored=True, node=stored.node)
        try:
            probed = await rooms.probes.run(job, node.profile.node_id, asked.timeout_ms)
        except DinError as error:
            return replace(item, error=error.story(), error_code=error.code)
        if not isinstance(probed.report, ProfileReport):
            raise ExecutionFailed(f"node {probed.node} answered with a report of another kind")
        profile = Profile(
            source_sha256=source,
            device=device,
            bucket=bucket,
            backend_options=options,
            node=probed.node,
            measured_at=rooms.wall_clock_iso(),
            report=probed.report,
        )
        await rooms.profiles.keep(profile)
        return replace(item, profile=profile)

    async def _live_factor(self, record: ModelRecord, item: ProfileItem) -> float | None:
        if item.profile is None:
            return None
        times = times_for(item.profile, await self._rooms.table(record.order))
        if times is None or len(times) != len(record.assignment):
            return None
        return live_factor(self._rooms.live_pairs(record, item.profile, times))

    # Verification.

    async def verify(self, record: ModelRecord, asked: VerifyModel) -> Verification:
        """Whole against sliced. Raises CannotPlace when no node can hold the whole, and what a
        probe raises."""
        subject = Subject.of(record)
        if record.manifest.precision == "exact":
            return await self._verify(subject, asked, is_quick=False)
        # The cuts are held to the whole bit for bit; what encodings cost was checked apart.
        with self._rooms.borrowing() as made:
            carved = await self._rooms.carve(
                subject.order, record.assignment, is_encrypted=subject.is_encrypted
            )
            made |= {each.sha256 for part in carved.slices for each in part.artifacts}
            plain = with_changes(subject, slices=carved.slices, edges=carved.edges)
            return await self._verify(plain, asked, is_quick=False)

    async def look_over(self, subject: Subject) -> Verification:
        """The quick verification of a new version: one made-up input. What stands in its way is a
        reason why nothing is known, and no error."""
        try:
            asked = VerifyModel(timeout_ms=QUICK_MS_MAX)
            return await self._verify(subject, asked, is_quick=True)
        except DinError as error:
            first = error.message.partition("\n")[0]
            return Verification(state=UNKNOWN, summary=f"the slices were not verified: {first}")

    async def _verify(
        self, subject: Subject, asked: VerifyModel, *, is_quick: bool
    ) -> Verification:
        engines = engines_of_slices(subject.slices)
        if any(runs_whole(each) for each in engines):
            return Verification(state=WHOLE, summary="the file runs whole, as its engine takes it")
        if len(subject.slices) < 2 and not engines:
            return Verification(
                state=WHOLE, summary="the model is one slice: there is nothing to compare"
            )
        given = given_of(asked.inputs, subject.inputs)
        untested = behind_random(subject.slices, subject.edges)
        node_id = self._one_of_each(asked.node)[0].profile.node_id if asked.node else None
        able = able_node(self._rooms.fleet_nodes(), engines, node_id)
        if able is not None:
            node_id = able
        elif engines and len(subject.slices) < 2:
            return Verification(state=UNKNOWN, summary=not_compared(engines))
        reports: list[VerifyReport] = []
        node = ""
        with self._rooms.borrowing() as made:
            whole = await self.whole(subject, made)
            for window in windows_of(whole, in_order(subject.slices, subject.edges)):
                order = verify_order(
                    whole,
                    window,
                    untested,
                    shapes=asked.shapes,
                    seed=asked.seed,
                    is_quick=is_quick,
                )
                if engines:
                    order = on_engines(order, engines if able is not None else ())
                job = self._job(subject, order, (whole, *window), given)
                probed = await self._rooms.probes.run(job, node_id, asked.timeout_ms)
                if not isinstance(probed.report, VerifyReport):
                    raise ExecutionFailed(f"node {probed.node} answered with another report")
                reports.append(probed.report)
                node, node_id = probed.node, probed.node_id
        found = verdict(merged(reports), node, self._rooms.wall_clock_iso())
        if engines and able is None:
            return replace(found, summary=f"{found.summary}; {not_compared(engines)}")
        return found

    # Rewrites.

    async def compare(self, subject: Subject) -> RewriteCheck | None:
        """By how much the rewrites of a new version change its numbers. Raises nothing."""
        return await self._rewriting.compare(subject)

    async def compare_again(self, record: ModelRecord, asked: VerifyModel) -> RewriteCheck | None:
        """The same on given inputs. Raises BadTensor for those."""
        subject = Subject.of(record)
        given = given_of(asked.inputs, subject.inputs)
        return await self._rewriting.compare(
            subject, given, shapes=asked.shapes, seed=asked.seed, timeout_ms=asked.timeout_ms
        )

    # For all, and for the choice of encodings.

    def borrowing(self) -> AbstractContextManager[set[str]]:
        """Artifacts put into the set are kept until it is left."""
        return self._rooms.borrowing()

    async def ask(
        self,
        subject: Subject,
        order: ProbeOrder,
        parts: Sequence[Slice],
        timeout_ms: int,
        given: Given = NOTHING_GIVEN,
    ) -> Probed:
        """Run one probe over these parts on any node. Raises as `Probes.run`."""
        job = self._job(subject, order, parts, given)
        return await self._rooms.probes.run(job, None, timeout_ms)

    async def whole(self, subject: Subject, made: set[str]) -> Slice:
        """The model in one slice; its files live as long as `made`."""
        if len(subject.slices) == 1:
            return subject.slices[0]
        # Uncut, and otherwise as its slices: operators that were rewritten are in both. Tensors
        # cross as they are in both, since nothing is encoded before a cut was found right.
        strategy = Strategy(rewrite=subject.order.slicing_strategy.rewrite)
        order = replace(subject.order, slicing_strategy=strategy)
        carved = await self._rooms.carve(order, (), is_encrypted=subject.is_encrypted)
        whole = carved.slices[0]
        made.update(each.sha256 for each in whole.artifacts)
        return whole

    @staticmethod
    def _job(
        subject: Subject,
        order: ProbeOrder,
        parts: Sequence[Slice],
        given: Given,
    ) -> ProbeJob:
        artifacts = files_of(parts)
        models = sum(each.nbytes for each in artifacts if each.role == "model")
        given = given.only(each.name for each in parts[0].inputs)  # others go nowhere
        inputs = sum(meta.nbytes for meta in given.metas)
        return ProbeJob(
            order=order,
            subject=subject.order.model_id,
            artifacts=artifacts,
            backend_options=with_engines(subject.order.backend_options, order),
            specs=given.specs,
            metas=given.metas,
            chunks=given.chunks,
            # One model is loaded at a time, and all files are read or mapped.
            memory_mib=max(part.memory_mib for part in parts) + -(-(models + inputs) // MIB),
            is_sensitive=any(part.is_sensitive for part in subject.slices),
            tenant=subject.tenant,
        )


def files_of(parts: Sequence[Slice]) -> tuple[Artifact, ...]:
    """The model of each part in order, then the weights of all, each once."""
    models = [each for part in parts for each in part.artifacts if each.role == "model"]
    weights = {each.sha256: each for part in parts for each in part.artifacts}
    return (*models, *(each for each in weights.values() if each.role == "weights"))


def given_of(tensors: Sequence[GivenTensor], inputs: Collection[TensorSpec]) -> Given:
    """Given inputs held against the model's signature. Raises BadTensor."""
    known = {spec.name: spec for spec in inputs}
    symbols: dict[str, int] = {}
    specs: dict[str, TensorSpec] = {}
    metas: list[TensorMeta] = []
    for each in tensors:
        spec = known.get(each.name)
        if spec is None or each.name in specs:
            what = "has no input" if spec is None else "was given twice its input"
            raise BadTensor(
                f"the model {what} {each.name!r}",
                hint=f"its inputs are {', '.join(known) or 'none'}",
            )
        meta = TensorMeta(each.name, each.datatype, each.shape, len(each.data))
        check_tensor(spec, meta, symbols)
        specs[each.name] = spec
        metas.append(meta)
    return Given(tuple(specs.values()), tuple(metas), tuple((each.data,) for each in tensors))
