"""One kept HTTP/1.1 connection to one address, for one thread; another may cut it off.

A server that is not there is an ExecutionFailed: the request is run again where another one is.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from din.errors import DinError, ExecutionFailed

CONNECT_S: Final = 1.5
"""Less than a worker's watchdog leaves a run that it has stopped."""
JSON_BYTES_MAX: Final = 256 * 1024 * 1024
HEADER_LENGTH: Final = "Inference-Header-Content-Length"

Body = bytes | memoryview


class _Http(http.client.HTTPConnection):
    """To an address that is known: nothing is looked up, so that no file is needed."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__(address, port)
        self.timeout_s: float | None = None
        self.latest: socket.socket | None = None
        """Stays known while an answer is read from it after which the server closes."""

    def connect(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.sock = self.latest = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(CONNECT_S)
        self.sock.connect((self.host, self.port))
        self.sock.settimeout(self.timeout_s)


class Connection:
    """Opened with the first request and again when the server has closed it meanwhile."""

    def __init__(self, address: str, port: int, headers: Mapping[str, str], url: str) -> None:
        """`headers` go with every request; `url` is what people know the server by."""
        self._http = _Http(address, port)
        self._headers = dict(headers)
        self.url = url
        self._is_stopped = False

    def ask(
        self,
        method: str,
        path: str,
        parts: Iterable[Body] = (),
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> http.client.HTTPResponse:
        """The head of the answer; the caller reads the rest to its end before it asks again.

        Raises ExecutionFailed when the server cannot be reached or breaks off. A connection that
        was kept, and dies before anything of an answer, is opened once more.
        """
        body = list(parts)
        self._is_stopped = False
        is_kept = self._http.sock is not None
        try:
            return self._once(method, path, body, headers or {}, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            is_stale = is_kept and isinstance(
                error, http.client.RemoteDisconnected | BrokenPipeError | ConnectionResetError
            )
            if not is_stale or self._is_stopped:
                raise self._told(error) from error
        try:
            return self._once(method, path, body, headers or {}, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._told(error) from error

    def read(self, response: http.client.HTTPResponse, nbytes_max: int) -> bytes:
        """The rest of an answer. Raises ExecutionFailed, over the limit as well."""
        with self._reading():
            found = response.read(nbytes_max + 1)
            if len(found) > nbytes_max:
                raise ExecutionFailed(f"{self.url} answered with more than {nbytes_max} bytes")
            if not response.isclosed():
                response.read()
            return found

    def fill(self, response: http.client.HTTPResponse, target: memoryview) -> None:
        """So many bytes of an answer, where they stay. Raises ExecutionFailed."""
        with self._reading():
            done = 0
            while done < len(target):
                count = response.readinto(target[done:])
                if count <= 0:
                    raise ConnectionError(f"the answer ended {len(target) - done} bytes early")
                done += count

    def finish(self, response: http.client.HTTPResponse) -> None:
        """After everything expected was read: whatever follows makes the connection useless."""
        with self._reading():
            if not response.isclosed() and response.read(1):
                self.close()

    def cut(self) -> None:
        """End what runs, from another thread: it raises then. The server sees us go."""
        self._is_stopped = True
        sock = self._http.latest
        if sock is not None:
            with suppress(OSError):  # it was not connected yet, or is gone
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Forget the connection; the next request opens another."""
        self._http.close()
        self._http.latest = None

    def _once(
        self,
        method: str,
        path: str,
        body: list[Body],
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> http.client.HTTPResponse:
        own = {**self._headers, **headers}
        if body:
            own["Content-Length"] = str(sum(len(each) for each in body))
        self._http.timeout_s = timeout_s
        if self._http.sock is not None:
            self._http.sock.settimeout(timeout_s)
        self._http.request(method, path, iter(body) if body else None, own)
        return self._http.getresponse()

    def _told(self, error: Exception) -> DinError:
        if self._is_stopped:
            return ExecutionFailed("the run was stopped")
        if isinstance(error, TimeoutError):
            return ExecutionFailed(
                f"{self.url} does not answer in time", hint="is that server overloaded or gone"
            )
        if isinstance(error, OSError) and error.strerror:
            said = error.strerror
        else:
            said = str(error) or type(error).__name__
        return ExecutionFailed(
            f"{self.url} does not answer: {said:.200}", hint="is that server running"
        )

    @contextmanager
    def _reading(self) -> Generator[None]:
        """An answer that was not read to its end leaves nothing to go on with."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._told(error) from error
        except BaseException:
            self.close()
            raise
