"""The carver as a process of the command line's own: what a strategy makes of a model, here.

The model is a stranger's file: it is parsed there, confined as everywhere; nothing is written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from din.cli.model_file import Registration
from din.client.beside import opened_beside
from din.domain.gateway_view import ErrorView
from din.domain.malformed import MALFORMED
from din.domain.model import CarveAnswer, CarveRequest, ExternalFile, Partition
from din.domain.strategy import Strategy
from din.errors import DeadlineExceeded, DinError, Internal, NotFound, error_of_code
from din.gateway.registration.partition import build_partition, check_options, marked_private
from din.gateway.registration.record import adapter_of
from din.gateway.registration.tiles import tiles_of
from din.system.privacy import plain_environment

CARVE_SECONDS_MAX: Final = 300


def _file_of(registration: Registration) -> Path:
    path = registration.model_path
    if path is None:
        raise NotFound(
            f"model {registration.order.model_id!r} is a server's: there is no file to cut",
            hint="din model register --config FILE registers it",
        )
    if not path.is_file():
        raise NotFound(f"there is no model file {path}", hint="`onnx_path` is relative to its file")
    return path


def carve_here(registration: Registration) -> CarveAnswer:
    """What the strategy makes of the model file. Raises NotFound without it, the carver's error
    with the place in the strategy's file, DeadlineExceeded after CARVE_SECONDS_MAX."""
    path = _file_of(registration)
    strategy = registration.order.slicing_strategy
    if strategy.type == "auto":
        # Where DIN cuts, the gateway chooses; what is asked of ranges can be checked here.
        strategy = Strategy(
            backend_map=strategy.backend_map, ranges=strategy.ranges, rewrite=strategy.rewrite
        )
    request = CarveRequest(
        model_path=str(path.resolve()),
        external=_beside(path),
        output_path="",
        is_dry_run=True,
        strategy=strategy,
        input_shapes=registration.order.inputs,
    )
    try:
        done = subprocess.run(
            # Not what lies in the folder where somebody stands, nor their keys.
            [sys.executable, "-P", "-m", "din.carver"],
            env=plain_environment(os.environ),
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=CARVE_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(
            f"{path} was not read within {CARVE_SECONDS_MAX} s",
            hint="try again when this machine has less to do",
        ) from None
    try:
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=CarveAnswer)
        view = msgspec.json.decode(done.stdout, type=ErrorView)
    except MALFORMED:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Internal(
            f"the carver ended with code {done.returncode} and said nothing: {said}",
            hint="keep the model file and report this",
        ) from None
    raise registration.placed(error_of_code(view.code, view.message, view.hint))


def _beside(path: Path) -> dict[str, ExternalFile]:
    """Files in which the model keeps weights. Raises NotFound, UsageError as uploading does."""
    with path.open("rb") as model:
        locations = [location for location, _ in opened_beside(model)]
    # Their hashes would name packs that nobody fetches here.
    return {
        each: ExternalFile(path=str(path.parent.resolve() / each), sha256="") for each in locations
    }


def partition_here(registration: Registration, carved: CarveAnswer) -> Partition:
    """With adapters, and with what `private` asks, as the gateway makes it: all that it refuses
    without looking at nodes is refused here. Raises UsageError."""
    order = registration.order
    try:
        check_options(order.backend_options, carved)
        tiles_of(order.slicing_strategy, carved)
        before, after = adapter_of(order.before, "before"), adapter_of(order.after, "after")
        partition = build_partition(carved, before, after)
    except DinError as error:
        raise registration.placed(error) from None
    return marked_private(partition, order.slicing_strategy.private)
