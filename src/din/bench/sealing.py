"""What it costs that slices are signed, sealed and opened in a child."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

from din.agent.unsealer import Unsealer
from din.bench.fresh import Load, load_afresh
from din.bench.models import fetched, write_convolutions
from din.bench.row import Effort, Row, figure, median, percentile
from din.domain.deployment import Epoch
from din.domain.model import Artifact, Slice
from din.gateway.trust.vault import Vault
from din.trust.grants import data_key_of
from din.trust.requests import pem_of_key, public_key_bytes
from din.trust.sealing import (
    HEADER_BYTES,
    Algorithm,
    Header,
    new_header,
    open_sealed,
    opened_pieces,
    parse_header,
    sealed_pieces,
)
from din.trust.signing import check_signature
from din.unseal.opening import trusted_in, unseal
from din.wire.messages import Prepare
from din.wire.statement import statement_of
from din.wire.unseal import Unseal

MODELS: Final = ("ppocr-rec", "centerface")
CONVOLUTIONS: Final = "convolutions"
LAYERS: Final = 5
MEMORY_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
"""Whether the kernel may take large pages for memory files."""
LOAD_RATIO_MAX: Final = 1.10
MIB: Final = 1024 * 1024
BULK_BYTES: Final = 32 * MIB
ALGORITHMS: Final[tuple[Algorithm, ...]] = ("aes-256-gcm", "chacha20-poly1305")
SEED: Final = 1


class _Sealed:
    """One sealed model with a gateway's and a joined node's keys."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.plain = model
        self.file = folder / "sealed"
        self.trust = folder / "node"
        self.vault = Vault(folder / "gateway", is_signing=True)
        self.trust.mkdir(mode=0o700)
        self.key = ec.generate_private_key(ec.SECP256R1())
        key_file = self.trust / "node.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(pem_of_key(self.key))
        cluster = msgspec.json.encode({"signing_key": self.vault.signing_key})
        (self.trust / "cluster.json").write_bytes(cluster)
        with model.open("rb") as source:
            sha256 = hashlib.file_digest(source, "sha256").hexdigest()
            self.artifact: Artifact = self.vault.seal(source.fileno(), sha256, self.file)
        self.part = Slice(
            index=0,
            slice_id=sha256,
            name="bench",
            artifacts=(self.artifact,),
            inputs=(),
            outputs=(),
        )
        self.statement = statement_of("bench", self.part, {})
        self.signature = self.vault.sign(self.statement)
        self.grant = self.vault.grant(self.file, public_key_bytes(self.key.public_key()))
        with self.file.open("rb") as sealed:
            header = parse_header(sealed.read(HEADER_BYTES))
        self.data_key = data_key_of(self.grant, header, self.key)

    def opened(self) -> int:
        """As the child does it, in this process."""
        order = Unseal(
            ticket=1,
            statement=self.statement.decode(),
            signature=self.signature,
            grant=self.grant,
            artifact=0,
            path=str(self.file),
        )
        return unseal(order, trusted_in(self.trust))

    def decrypt(self) -> None:
        """The floor of opening: read and decrypt, and put the content nowhere."""
        with self.file.open("rb", buffering=0) as source:
            header = parse_header(source.read(HEADER_BYTES))
            for _ in opened_pieces(source.readinto, header, self.data_key):
                pass

    def order(self) -> Prepare:
        """As the gateway sends it."""
        return Prepare(
            Epoch(1, 1), "bench", self.part, (), (), 1, {}, "", {}, 1, self.signature, self.grant
        )


class _Round(Struct, frozen=True):
    plain: Load
    opened: Load
    open_s: float
    """To make the memfd, and to free it."""
    decrypt_s: float

    @property
    def total_s(self) -> float:
        """From the sealed file to the loaded model."""
        return self.open_s + self.opened.cpu_s


def sealing(effort: Effort) -> Iterator[Row]:
    """Opening and loading against loading alone; sealing and opening by themselves; keys."""
    for name in MODELS:
        with tempfile.TemporaryDirectory(prefix="din-bench-") as folder:
            sealed = _Sealed(Path(folder), fetched(name))
            yield _load_row(name, sealed, effort)
            yield _child_row(name, sealed, effort)
    with tempfile.TemporaryDirectory(prefix="din-bench-") as folder:
        model = write_convolutions(Path(folder) / "plain", LAYERS)
        sealed = _Sealed(Path(folder), model)
        yield _load_row(CONVOLUTIONS, sealed, effort)
        yield _child_row(CONVOLUTIONS, sealed, effort)
        yield from _key_rows(sealed, effort)
    yield from _bulk_rows(effort)


def _load_row(name: str, sealed: _Sealed, effort: Effort) -> Row:
    count = max(3, effort.repeats * effort.rounds // 200)
    rounds = [_round(sealed) for _ in range(count)]
    plain_s = median([each.plain.cpu_s for each in rounds])
    total_s = median([each.total_s for each in rounds])
    open_s = median([each.open_s for each in rounds])
    decrypt_s = median([each.decrypt_s for each in rounds])
    low, high = (
        percentile([each.total_s / each.plain.cpu_s for each in rounds], part)
        for part in (0.25, 0.75)
    )
    plain_mib = median([each.plain.peak_mib for each in rounds])
    opened_mib = median([each.opened.peak_mib for each in rounds])
    how = (
        f"{sealed.artifact.plain_nbytes / MIB:.1f} MiB: signature, grant, decryption into a sealed "
        "memfd, then read and load in a fresh fork, against reading the file and loading in "
        f"another; median CPU time of {count} each, in turns: {plain_s * 1000:.1f} ms against "
        f"{total_s * 1000:.1f}, the middle half of the rounds {low:.3f} to {high:.3f}; opening "
        f"{open_s * 1000:.1f} ms, reading and decrypting alone {decrypt_s * 1000:.1f} "
        f"({1 + decrypt_s / plain_s:.3f}), the rest mostly pages of the memfd (shmem_enabled "
        f"{_memory_pages()}); peak memory of loading {plain_mib:.0f} MiB plain, {opened_mib:.0f} "
        "sealed beside the memfd"
    )
    ratio = total_s / plain_s
    return figure(f"decrypt + load / load, {name}", ratio, "x load", how, at_most=LOAD_RATIO_MAX)


def _round(sealed: _Sealed) -> _Round:
    descriptor = os.open(sealed.plain, os.O_RDONLY | os.O_CLOEXEC)
    try:
        plain = load_afresh(descriptor)
    finally:
        os.close(descriptor)
    started = process_time()
    descriptor = sealed.opened()
    open_s = process_time() - started
    try:
        opened = load_afresh(descriptor)
    finally:
        started = process_time()
        os.close(descriptor)
    open_s += process_time() - started
    started = process_time()
    sealed.decrypt()
    return _Round(plain, opened, open_s, process_time() - started)


def _memory_pages() -> str:
    shown = MEMORY_PAGES.read_text() if MEMORY_PAGES.exists() else ""
    return shown.partition("[")[2].partition("]")[0] or "unknown"


def _child_row(name: str, sealed: _Sealed, effort: Effort) -> Row:
    async def measured() -> tuple[float, list[float]]:
        unsealer = Unsealer(sealed.trust)

        async def once() -> float:
            started = perf_counter()
            os.close(await unsealer.open(sealed.order(), 0, sealed.file))
            return (perf_counter() - started) * 1000

        try:
            first_ms = await once()
            return first_ms, [await once() for _ in range(max(3, effort.repeats // 50))]
        finally:
            await unsealer.close()

    first_ms, more_ms = asyncio.run(measured())
    how = (
        f"{name} through `din.unseal`: its start and the first slice; {median(more_ms):.1f} ms for "
        f"each more of a burst (median of {len(more_ms)})"
    )
    return figure(f"first slice of a burst, {name}", first_ms, "ms", how)


def _bulk_rows(effort: Effort) -> Iterator[Row]:
    plain = Random(SEED).randbytes(BULK_BYTES)
    sha256 = hashlib.sha256(plain).hexdigest()
    master, key = os.urandom(32), os.urandom(32)
    for algorithm in ALGORITHMS:
        header = new_header(master, key, sha256, len(plain), algorithm)
        data = b"".join(sealed_pieces(header, key, plain))

        works = (partial(_drained, header, key, plain), partial(open_sealed, data, key))
        seal_s, open_s = _interleaved(works, effort.rounds + 2)
        how = f"{BULK_BYTES // MIB} MiB in memory, chunks of 1 MiB, median of {effort.rounds + 2}"
        mib = BULK_BYTES / MIB
        yield figure(f"sealing, {algorithm}", mib / seal_s, "MiB/s", how)
        yield figure(f"opening, {algorithm}", mib / open_s, "MiB/s", how)


def _drained(header: Header, key: bytes, plain: bytes) -> None:
    for _ in sealed_pieces(header, key, plain):
        pass


def _key_rows(sealed: _Sealed, effort: Effort) -> Iterator[Row]:
    public_key = public_key_bytes(sealed.key.public_key())
    header = parse_header(sealed.file.read_bytes())
    works: dict[str, Callable[[], object]] = {
        "grant a key": lambda: sealed.vault.grant(sealed.file, public_key),
        "take a grant": lambda: data_key_of(sealed.grant, header, sealed.key),
        "sign a slice": lambda: sealed.vault.sign(sealed.statement),
        "verify a slice": lambda: check_signature(
            sealed.vault.signing_key, sealed.statement, sealed.signature
        ),
    }
    count = max(5, effort.repeats // 5)
    times_s = _interleaved(tuple(works.values()), count)
    for name, time_s in zip(works, times_s, strict=True):
        yield figure(name, time_s * 1e6, "us", f"median CPU time of {count}, interleaved")


def _interleaved(works: tuple[Callable[[], object], ...], count: int) -> list[float]:
    """Median processor seconds of each."""
    spent: list[list[float]] = [[] for _ in works]
    order = Random(SEED)
    for _ in range(count):
        for which in order.sample(range(len(works)), len(works)):
            started = process_time()
            works[which]()
            spent[which].append(process_time() - started)
    return [median(each) for each in spent]
