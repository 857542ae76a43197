"""The slicing cache: what a known cut of a model costs, against cutting it."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from din.artifacts.files import ArtifactFolder
from din.bench.models import fetched
from din.bench.row import Effort, Row, figure, median
from din.domain.model import CarveRequest
from din.domain.strategy import Strategy
from din.gateway.registration.carve_cache import MEGABYTE, CarveCache
from din.gateway.registration.carving import Carving
from din.gateway.trust.vault import Vault

POINTS: Final = ("377", "387", "404", "474")
CACHE_BYTES: Final = 128 * MEGABYTE
QUOTA_BYTES: Final = 1 << 30
HIT_MS_MAX: Final = 0.1


def cache_hits(effort: Effort) -> Iterator[Row]:
    """CenterFace in five slices, by the gateway's own rooms: first cut, then known."""
    data = fetched("centerface").read_bytes()
    with tempfile.TemporaryDirectory(prefix="din-bench-") as folder:
        cut_ms, hits_ms = asyncio.run(_times_ms(Path(folder), data, effort.repeats))
    how = (
        f"median wall time of {len(hits_ms)} look-ups, key, files and order of use included; "
        f"cutting it took {cut_ms:.0f} ms with the carver's process"
    )
    yield figure("slice cache hit", median(hits_ms), "ms", how, at_most=HIT_MS_MAX)


async def _times_ms(folder: Path, data: bytes, repeats: int) -> tuple[float, list[float]]:
    artifacts = ArtifactFolder(folder / "artifacts", QUOTA_BYTES)
    source = hashlib.sha256(data).hexdigest()
    artifacts.path.joinpath(source).write_bytes(data)
    cache = CarveCache(folder / "cache", artifacts, CACHE_BYTES, lambda what, **facts: None)
    carving = Carving(artifacts, folder / "carving", Vault(folder / "trust"), cache)
    strategy = Strategy(partition_points=POINTS)
    request = CarveRequest(model_path="", output_path="", strategy=strategy)

    async def spent_ms() -> float:
        started = perf_counter_ns()
        await carving.carve(request, source)
        return (perf_counter_ns() - started) / 1e6

    cut_ms = await spent_ms()
    hits_ms = [await spent_ms() for _ in range(max(2, repeats))]
    assert cache.view().misses == 1, "the cut was not kept"
    return cut_ms, hits_ms
