"""Why one attempt ended without a result: the error, whom it blames, whether another may help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from din.errors import DinError
from din.gateway.routes.serving import LiveReplica


class AttemptEnded(Exception):
    """One attempt is over. Raised inside dispatch only; callers of the gateway see `error`."""

    def __init__(
        self,
        error: DinError,
        *,
        blamed: tuple[str, ...] = (),
        is_retryable: bool = True,
        is_busy: bool = False,
        is_node_suspect: bool = False,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.blamed = blamed
        """Node ids to leave out of the next route."""
        self.is_retryable = is_retryable
        self.is_busy = is_busy
        """A full queue blames nobody: the node stays routable."""
        self.is_node_suspect = is_node_suspect
        """The blamed nodes did not answer, so membership must hear of it."""


class AttemptFailed(NamedTuple):
    """A failed attempt with the replicas that took part."""

    replicas: Mapping[int, LiveReplica]
    ended: AttemptEnded
