"""Which models are registered, in which versions, and what stays on the disk."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cut_play import device, table_of, terrain_of, two_slices
from gateway_fakes import chain_of, outcome_of, settle
from msgspec.structs import replace

from din.artifacts.files import ArtifactFolder
from din.domain.cuts import CutTable
from din.domain.deployment import Deployment, Epoch
from din.domain.model import AnalyseRequest, Artifact, CarveAnswer, CarveRequest
from din.domain.strategy import Strategy
from din.domain.tensor import TensorSpec
from din.domain.views import RegisterModel
from din.errors import (
    BadModel,
    Conflict,
    DinError,
    Internal,
    NotFound,
    TooLarge,
    Unavailable,
    UsageError,
)
from din.flow.timeout import Timeouts
from din.gateway.registration.cutting import CutChooser
from din.gateway.registration.models import MODELS_MAX, ModelBook
from din.gateway.registration.names import (
    MODEL_ID_BYTES_MAX,
    MODEL_ID_CHARS_MAX,
    nearest,
    normal_model_id,
)
from din.gateway.registration.record import (
    REPLICAS_MAX,
    WORKERS_MAX,
    ModelRecord,
    artifacts_of,
    read_record,
)
from din.gateway.routes.serving import Serving
from din.store.sqlite import SqliteStore
from tests.strategies import ordered

QUOTA = 10_000_000
INPUT = TensorSpec("input", "FP32", (1, 3, 32, 32))
OUTPUT = TensorSpec("scores", "FP32", (1, 10))
CAFE_NFC, CAFE_NFD = "caf\u00e9", "cafe\u0301"


def sha256_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class FakeCarving:
    """Makes one artifact per slice, or raises."""

    def __init__(self, artifacts: ArtifactFolder) -> None:
        self.artifacts = artifacts
        self.requests: list[CarveRequest] = []
        self.analyses: list[AnalyseRequest] = []
        self.slices = 1
        self.is_whole = False
        """Nodes fetch what was uploaded."""
        self.body = b"slice"
        self.error: DinError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def analyse(self, request: AnalyseRequest, source: str, external: Any = None) -> CutTable:
        self.analyses.append(request)
        return table_of(2, 20, source)

    async def seal_source(self, sha256: str) -> None:
        self.artifacts.sealed_path(sha256).write_bytes(b"sealed")

    async def carve(
        self,
        request: CarveRequest,
        source: str,
        external: Mapping[str, str],
        *,
        is_sealed: bool = False,
    ) -> CarveAnswer:
        self.requests.append(request)
        is_whole = self.is_whole and not is_sealed
        if not is_sealed:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        parts = []
        for part in chain_of(self.slices).slices:
            body = self.body + str(part.index).encode() + b"sealed" * is_sealed
            if is_whole:
                body = self.artifacts.file(source).read_bytes()
            (self.artifacts.path / sha256_of(body)).write_bytes(body)
            parts.append(replace(part, artifacts=(Artifact(sha256_of(body), len(body)),)))
        return CarveAnswer(
            source_sha256=source,
            inputs=(INPUT,),
            outputs=(OUTPUT,),
            slices=tuple(parts),
            edges=chain_of(self.slices).edges,
            cuts=(),
            operators=1,
            opset=17,
            ir_version=8,
        )


class FakeDeployer:
    """Implements models.Deploying."""

    def __init__(self) -> None:
        self.servings: list[Serving] = []
        self.retired: list[Serving] = []
        self.error: DinError | None = None

    async def deploy(self, record: ModelRecord) -> Serving:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)
        serving = Serving(
            Deployment(
                epoch=Epoch(1, len(self.servings) + 1),
                manifest=record.manifest,
                partition=record.partition,
            ),
            Timeouts(),
        )
        self.servings.append(serving)
        return serving

    async def retire(self, serving: Serving) -> None:
        await asyncio.sleep(0)
        serving.is_retired = True
        self.retired.append(serving)


class Play:
    """A book over a real store and a real folder."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / "store.sqlite", lambda: 0)
        self.artifacts = ArtifactFolder(folder / "artifacts", QUOTA)
        self.restart()

    def restart(self, seals: Callable[[bool | None], bool] = bool) -> None:
        self.carving = FakeCarving(self.artifacts)
        self.terrain = terrain_of()
        self.deployer = FakeDeployer()
        self.book = ModelBook(
            self.store,
            self.artifacts,
            self.carving,
            CutChooser(self.carving, lambda order: self.terrain),
            seals,
        )
        self.book.connect(self.deployer)

    def upload(self, body: bytes) -> str:
        (self.artifacts.path / sha256_of(body)).write_bytes(body)
        return sha256_of(body)

    async def register(self, model_id: str = "faces", body: bytes = b"onnx", **more: Any) -> Any:
        order = RegisterModel(model_id=model_id, source_sha256=self.upload(body), **ordered(**more))
        return await self.book.register(order)

    def make_ready(self, serving: Serving) -> None:
        for index in serving.raw.slices:
            serving.add(index, "a" * 16, is_local=False)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Play], Coroutine[Any, Any, None]]], None]:
    def go(story: Callable[[Play], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            play = Play(tmp_path)
            await play.store.open()
            try:
                await story(play)
            finally:
                await play.store.close()

        asyncio.run(whole())

    return go


# Registering.


def test_one_that_is_sealed_leaves_its_source_to_one_that_is_not_and_in_the_making(run):
    async def story(play: Play) -> None:
        play.carving.is_whole = True
        play.carving.gate.clear()
        plain = asyncio.create_task(play.register("plain"))
        await settle()
        sealed = await play.register("sealed", encrypt=True)
        source = sealed.manifest.source_sha256
        assert play.artifacts.sealed_file(source) is not None
        play.carving.gate.set()
        (part,) = (await plain).partition.slices
        assert part.artifacts[0].sha256 == source
        assert play.artifacts.file(source).read_bytes() == b"onnx"
        await play.book.remove("plain")
        assert play.artifacts.sealed_file(source) is not None
        with pytest.raises(NotFound):
            play.artifacts.file(source)

    run(story)


def test_a_model_that_is_sealed_later_is_plain_no_longer_when_the_plain_version_goes(run):
    async def story(play: Play) -> None:
        play.carving.is_whole = True
        first = await play.register()
        source = first.manifest.source_sha256
        await play.register(encrypt=True)
        assert play.artifacts.file(source), "the first version still serves"
        play.restart()
        await play.book.load()
        assert play.artifacts.file(source), "and after a restart"
        _, second = play.deployer.servings
        play.make_ready(second)
        await play.book.became_ready(second)
        with pytest.raises(NotFound):
            play.artifacts.file(source)
        assert play.artifacts.sealed_file(source) is not None

    run(story)


def test_a_plain_form_that_a_dead_gateway_left_beside_the_sealed_one_goes_at_the_start(run):
    async def story(play: Play) -> None:
        source = (await play.register(encrypt=True)).manifest.source_sha256
        play.upload(b"onnx")
        play.restart()
        await play.book.load()
        with pytest.raises(NotFound):
            play.artifacts.file(source)
        assert play.artifacts.sealed_file(source) is not None

    run(story)


def test_the_first_version_is_1_and_is_deployed(run):
    async def story(play: Play) -> None:
        record = await play.register()
        assert (record.manifest.model_id, record.manifest.version) == ("faces", "1")
        assert play.book.serving("faces", None) is play.deployer.servings[0]
        assert [entry.key for entry in await play.store.list("models/")] == ["models/faces/1"]

    run(story)


def test_the_same_order_again_changes_nothing(run):
    async def story(play: Play) -> None:
        first = await play.register(partition_points=("404",))
        again = await play.register(partition_points=("404",))
        assert again is first
        assert len(play.carving.requests) == len(play.deployer.servings) == 1

    run(story)


def test_the_same_order_again_seals_a_model_from_when_no_other_machine_could_join(run):
    async def story(play: Play) -> None:
        plain = await play.register()
        chosen = await play.register("chosen", encrypt=False)
        play.restart(seals=lambda asked: asked is not False)
        await play.book.load()
        sealed = await play.register()
        assert not plain.manifest.is_encrypted
        assert (sealed.manifest.version, sealed.manifest.is_encrypted) == ("2", True)
        assert await play.register() is sealed
        assert (await play.register("chosen", encrypt=False)).manifest == chosen.manifest

    run(story)


def test_two_equal_orders_at_once_make_one_version(run):
    async def story(play: Play) -> None:
        play.carving.gate.clear()
        tasks = [asyncio.create_task(play.register()) for _ in range(3)]
        await settle()
        play.carving.gate.set()
        records = await asyncio.gather(*tasks)
        assert {record.manifest.version for record in records} == {"1"}
        assert len(play.deployer.servings) == 1

    run(story)


def test_two_different_orders_at_once_get_two_versions(run):
    async def story(play: Play) -> None:
        play.carving.gate.clear()
        tasks = [asyncio.create_task(play.register(workers=n)) for n in (1, 2)]
        await settle()
        play.carving.gate.set()
        records = await asyncio.gather(*tasks)
        assert [record.manifest.version for record in records] == ["1", "2"]
        assert len(play.deployer.servings) == 2

    run(story)


def test_a_dry_run_leaves_nothing_but_the_upload(run):
    async def story(play: Play) -> None:
        record = await play.register(is_dry_run=True)
        assert record.manifest.version == "1"
        assert not play.deployer.servings
        assert play.book.model_ids() == ()
        assert play.artifacts.hashes() == {sha256_of(b"onnx")}

    run(story)


def test_bytes_that_were_not_uploaded_are_not_found(run):
    async def story(play: Play) -> None:
        order = RegisterModel(model_id="faces", source_sha256="0" * 64)
        assert isinstance(await outcome_of(play.book.register(order)), NotFound)

    run(story)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0),
        ("workers", WORKERS_MAX + 1),
        ("replicas", 0),
        ("replicas", REPLICAS_MAX + 1),
    ],
)
def test_counts_out_of_bounds_are_refused(run, field: str, value: int):
    async def story(play: Play) -> None:
        error = await outcome_of(play.register(**{field: value}))
        assert isinstance(error, UsageError)
        assert field in error.message
        assert str(value) in error.message

    run(story)


def test_counts_at_their_bounds_are_taken(run):
    async def story(play: Play) -> None:
        record = await play.register(workers=WORKERS_MAX, replicas=REPLICAS_MAX)
        assert record.manifest.replicas_max == REPLICAS_MAX

    run(story)


def test_what_the_carver_refuses_is_not_registered(run):
    async def story(play: Play) -> None:
        play.carving.error = BadModel("it is a cat picture")
        assert isinstance(await outcome_of(play.register()), BadModel)
        assert play.book.model_ids() == ()
        assert not await play.store.list("models/")

    run(story)


@pytest.mark.parametrize(
    "more",
    [
        {"before": {"name": "nope"}},
        {"before": {"size": 3}},
        {"after": {"name": "image"}},
        {"after": {"name": "centerface"}},
        {"slices": ({"name": "a"}, {"name": "a"})},
        {"backend_options": {"optimisation": "of"}},
        {"backend_options": {"threads": "0"}},
        {"backend_options": {"colour": "red"}},
    ],
)
def test_adapters_and_settings_that_do_not_fit_are_refused_and_leave_no_artifacts(run, more):
    async def story(play: Play) -> None:
        error = await outcome_of(play.register(**more))
        assert isinstance(error, UsageError), error
        assert error.hint
        assert play.book.model_ids() == ()
        assert play.artifacts.hashes() <= {sha256_of(b"onnx")}

    run(story)


def test_a_full_disk_leaves_the_model_wholly_unregistered(run):
    async def story(play: Play) -> None:
        play.deployer.error = Unavailable("the disk is full")
        assert isinstance(await outcome_of(play.register()), Unavailable)
        assert play.book.model_ids() == ()
        assert not await play.store.list("models/")
        play.deployer.error = None
        assert (await play.register()).manifest.version == "1"

    run(story)


def test_the_number_of_models_is_limited(run):
    async def story(play: Play) -> None:
        record = await play.register()
        play.book._records = {f"m{i}": {"1": record} for i in range(MODELS_MAX)}
        assert isinstance(await outcome_of(play.register("one-more")), TooLarge)
        assert (await play.register("m0", workers=2)).manifest.version == "2"

    run(story)


# Names.


def test_a_model_is_found_under_either_spelling_of_its_name(run):
    """T42."""

    async def story(play: Play) -> None:
        first = await play.register(CAFE_NFD)
        assert play.book.model_ids() == (CAFE_NFC,)
        assert await play.register(CAFE_NFC) is first
        for spelling in (CAFE_NFC, CAFE_NFD):
            assert play.book.record(spelling) is first
            assert play.book.serving(spelling, "1") is play.deployer.servings[0]
        await play.book.remove(CAFE_NFD)
        assert play.book.model_ids() == ()

    run(story)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "a\x00", "\ud800", "x" * 129])
def test_names_that_no_key_or_screen_can_hold_are_refused(name: str):
    with pytest.raises(UsageError, match="not usable"):
        normal_model_id(name)


@pytest.mark.parametrize("name", ["x" * 128, "模型-100%", "😀", "a b", "ünï"])
def test_names_of_all_scripts_are_taken(name: str):
    assert normal_model_id(name)


def test_the_longest_name_still_fits_the_store(run):
    async def story(play: Play) -> None:
        longest = "😀" * (MODEL_ID_BYTES_MAX // 4)
        assert len(longest) <= MODEL_ID_CHARS_MAX
        await play.register(longest)
        assert isinstance(await outcome_of(play.register(longest + "x")), UsageError)

    run(story)


def test_an_unknown_model_is_answered_with_the_nearest(run):
    async def story(play: Play) -> None:
        await play.register("centerface")
        with pytest.raises(NotFound) as found:
            play.book.record("centreface")
        assert "centerface" in found.value.hint
        with pytest.raises(NotFound) as found:
            play.book.record("centerface", "7")
        assert "1" in found.value.hint

    run(story)


def test_hints_name_what_there_is():
    assert nearest("x", []) == "nothing is registered yet"
    assert nearest("face", ["faces"]) == "did you mean 'faces'?"
    assert nearest("zzz", [f"model-{i}" for i in range(9)]).endswith("…")


# Versions.


def test_the_old_version_serves_until_the_new_one_is_ready(run):
    """T53."""

    async def story(play: Play) -> None:
        await play.register()
        old = play.deployer.servings[0]
        play.make_ready(old)
        await play.register(body=b"newer")
        new = play.deployer.servings[1]
        assert play.book.serving("faces", None) is old
        play.make_ready(new)
        assert play.book.serving("faces", None) is new
        await play.book.became_ready(new)
        assert play.deployer.retired == [old]
        with pytest.raises(NotFound):
            play.book.serving("faces", "1")
        assert [entry.key for entry in await play.store.list("models/")] == ["models/faces/2"]

    run(story)


def test_artifacts_of_a_replaced_version_are_dropped(run):
    async def story(play: Play) -> None:
        await play.register()
        play.carving.body = b"other"
        await play.register(body=b"newer")
        await play.book.became_ready(play.deployer.servings[1])
        assert play.artifacts.hashes() == {sha256_of(b"newer"), sha256_of(b"other0")}

    run(story)


def test_removing_drops_what_no_other_model_needs(run):
    async def story(play: Play) -> None:
        await play.register("faces")
        play.carving.body = b"own"
        await play.register("plates", workers=2)
        await play.book.remove("plates")
        assert play.artifacts.hashes() == {sha256_of(b"onnx"), sha256_of(b"slice0")}
        assert [each.deployment.manifest.model_id for each in play.deployer.retired] == ["plates"]
        await play.book.remove("faces")
        assert not play.artifacts.hashes()
        with pytest.raises(NotFound):
            play.book.serving("faces", None)

    run(story)


def test_artifacts_of_a_model_in_the_making_are_not_dropped(run):
    async def story(play: Play) -> None:
        await play.register("faces")
        play.carving.gate.clear()
        task = asyncio.create_task(play.register("plates"))
        await settle()
        await play.book.remove("faces")
        play.carving.gate.set()
        await task
        assert play.artifacts.hashes() == {sha256_of(b"onnx"), sha256_of(b"slice0")}

    run(story)


def test_removing_during_a_registration_removes_that_version_too(run):
    async def story(play: Play) -> None:
        await play.register("faces")
        play.carving.gate.clear()
        task = asyncio.create_task(play.register("faces", workers=2))
        await settle()
        removal = asyncio.create_task(play.book.remove("faces"))
        await settle()
        play.carving.gate.set()
        await asyncio.gather(task, removal)
        assert play.book.model_ids() == ()
        assert len(play.deployer.retired) == 2

    run(story)


def test_removing_twice_at_once_finds_nothing_the_second_time(run):
    async def story(play: Play) -> None:
        await play.register("faces")
        ends = await asyncio.gather(
            play.book.remove("faces"), play.book.remove("faces"), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in ends) == ["ModelRecord", "NotFound"]

    run(story)


# Cuts that the strategy leaves to DIN.


def auto(**strategy: Any) -> Strategy:
    return Strategy(type="auto", **strategy)


def test_a_model_of_type_auto_is_carved_as_was_chosen_and_keeps_the_reason(run):
    async def story(play: Play) -> None:
        play.terrain = terrain_of(device("a", 100), device("b", 100))
        play.carving.slices = 2
        record = await play.register(slicing_strategy=auto())
        assert play.carving.requests[-1].assignment == (0, 1)
        assert record.choice is not None
        assert [each.node for each in record.choice.slices] == ["a", "b"]
        assert record.notes == (f"DIN cut it: {record.choice.reason}",)
        assert not record.manifest.is_cut_by_din
        stored = await play.store.get("models/faces/1")
        assert stored is not None
        assert read_record(stored) == record

    run(story)


def test_a_model_is_analysed_once_for_the_same_input_shapes(run):
    async def story(play: Play) -> None:
        play.terrain = terrain_of(device("a"))
        await play.register(slicing_strategy=auto())
        await play.register(slicing_strategy=auto(objective="throughput"))
        assert len(play.carving.analyses) == 1
        await play.register(slicing_strategy=auto(), inputs={"input": (2, 3, 32, 32)})
        assert len(play.carving.analyses) == 2

    run(story)


def test_without_a_node_a_model_of_type_auto_stays_whole_and_says_so(run):
    async def story(play: Play) -> None:
        record = await play.register(slicing_strategy=auto())
        assert play.carving.requests[-1].assignment == (0, 0)
        assert record.choice is None
        assert "not cut: no node was here" in record.notes[0]
        assert "din model slice faces" in record.notes[0]

    run(story)


def test_where_nothing_can_be_chosen_the_reason_is_kept(run):
    async def story(play: Play) -> None:
        play.terrain = terrain_of(device("a", 60))
        record = await play.register(slicing_strategy=auto())
        assert "no way to spread the model over 1 nodes" in record.notes[0]

    run(story)


def test_other_cuts_come_as_a_new_version_that_takes_over_when_it_is_ready(run):
    async def story(play: Play) -> None:
        record = await play.register(slicing_strategy=auto())
        play.carving.slices, play.carving.body = 2, b"cut"
        cut = await play.book.cut_again(record, two_slices())
        assert cut.manifest.version == "2"
        assert play.deployer.retired == []
        assert await play.register(slicing_strategy=auto()) is cut
        assert isinstance(await outcome_of(play.book.cut_again(replace(record), two_slices())),
                          Conflict)  # fmt: skip

    run(story)


# Cutting to fit.


def test_cutting_to_fit_keeps_the_version_and_replaces_its_deployment(run):
    async def story(play: Play) -> None:
        record = await play.register()
        play.carving.slices, play.carving.body = 2, b"cut"
        cut = await play.book.cut_to_fit(record, two_slices())
        assert play.carving.requests[-1].assignment == (0, 1)
        assert cut.manifest.version == record.manifest.version
        assert cut.manifest.is_cut_by_din
        assert "DIN cut it: 2 slices on a, b" in cut.notes[0]
        assert play.deployer.retired == [play.deployer.servings[0]]
        assert play.book.serving("faces", None) is play.deployer.servings[1]
        assert play.book.record("faces") is cut
        assert play.artifacts.hashes() == {sha256_of(b) for b in (b"onnx", b"cut0", b"cut1")}
        assert await play.register() is cut

    run(story)


def test_the_model_can_be_asked_for_at_every_moment_of_a_cut(run):
    async def story(play: Play) -> None:
        record = await play.register()
        task = asyncio.create_task(play.book.cut_to_fit(record, two_slices()))
        while not task.done():
            assert play.book.serving("faces", None) in play.deployer.servings
            await asyncio.sleep(0)
        assert play.book.serving("faces", None) is play.deployer.servings[1]

    run(story)


def test_a_cut_that_is_refused_leaves_the_version_as_it_was(run):
    async def story(play: Play) -> None:
        record = await play.register()
        play.carving.error = BadModel("one operator is too large")
        assert isinstance(await outcome_of(play.book.cut_to_fit(record, two_slices())), BadModel)
        assert play.book.record("faces") is record
        assert play.book.serving("faces", None) is play.deployer.servings[0]

    run(story)


def test_a_removed_model_is_not_cut(run):
    async def story(play: Play) -> None:
        record = await play.register()
        await play.book.remove("faces")
        assert isinstance(await outcome_of(play.book.cut_to_fit(record, two_slices())), NotFound)
        assert play.book.model_ids() == ()

    run(story)


# Starting again.


def test_a_restart_deploys_what_the_store_knows(run):
    async def story(play: Play) -> None:
        await play.register("faces", partition_points=("404",))
        await play.register("plates", workers=2)
        play.upload(b"left over")
        play.restart()
        await play.book.load()
        assert play.book.model_ids() == ("faces", "plates")
        assert len(play.deployer.servings) == 2
        assert play.artifacts.hashes() == {sha256_of(b"onnx"), sha256_of(b"slice0")}
        again = await play.register("faces", partition_points=("404",))
        assert again.manifest.version == "1"
        assert not play.carving.requests

    run(story)


def test_a_restart_in_the_middle_of_a_change_of_version_keeps_both(run):
    async def story(play: Play) -> None:
        await play.register()
        await play.register(body=b"newer")
        play.restart()
        await play.book.load()
        old, new = play.deployer.servings
        play.make_ready(old)
        assert play.book.serving("faces", None) is old
        play.make_ready(new)
        await play.book.became_ready(new)
        assert play.deployer.retired == [old]

    run(story)


def test_a_damaged_record_stops_the_start_with_its_key_and_a_hint(run):
    async def story(play: Play) -> None:
        await play.store.put("models/faces/1", b'{"manifest": 3}')
        error = await outcome_of(play.book.load())
        assert isinstance(error, Internal)
        assert "models/faces/1" in error.message
        assert error.hint

    run(story)


def test_a_record_from_before_the_strategy_was_one_key_is_read_as_it_was_meant(run):
    async def story(play: Play) -> None:
        settings = ({"name": "front", "sensitive": True}, {})
        made = await play.register(
            partition_points=("404",), backend_map={"a:b": "onnxruntime"}, slices=settings,
            private="first-last",
        )  # fmt: skip
        content = msgspec.json.decode(msgspec.json.encode(made))
        order = content["order"]
        del order["slicing_strategy"]
        order |= {"partition_points": ["404"], "backend_map": {"a:b": "onnxruntime"}}
        order |= {"slices": list(settings), "private": "first-last"}
        content["order_sha256"] = "of the former layout"
        await play.store.put("models/faces/1", msgspec.json.encode(content))
        play.restart()
        await play.book.load()
        assert play.book.record("faces") == made
        again = await play.register(
            partition_points=("404",), backend_map={"a:b": "onnxruntime"}, slices=settings,
            private="first-last",
        )  # fmt: skip
        assert again.manifest.version == "1"

    run(story)


def test_a_record_that_nothing_can_read_is_named(run):
    async def story(play: Play) -> None:
        made = msgspec.json.decode(msgspec.json.encode(await play.register()))
        made["order"]["slicing_strategy"] = {"type": "by_magic"}
        await play.store.put("models/faces/1", msgspec.json.encode(made))
        play.restart()
        with pytest.raises(Internal, match=r"'models/faces/1'.*by_magic"):
            await play.book.load()

    run(story)


def test_files_that_the_slicing_cache_keeps_stay_until_it_lets_them_go(run):
    async def story(play: Play) -> None:
        held: set[str] = set()
        play.book.keeper.needed_too = lambda: held
        record = await play.register(is_dry_run=True)
        made = {sha for sha in artifacts_of(record) if sha != record.manifest.source_sha256}
        assert not made & play.artifacts.hashes()
        held |= made
        await play.register()
        await play.book.remove("faces")
        assert play.artifacts.hashes() == made
        play.restart()
        play.book.keeper.needed_too = lambda: held
        await play.book.load()
        assert play.artifacts.hashes() == made
        held.clear()
        play.book.keeper.drop(made)
        assert play.artifacts.hashes() == set()

    run(story)
