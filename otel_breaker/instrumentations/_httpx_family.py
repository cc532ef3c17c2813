"""httpx and httpx2: two unrelated packages with the same two layers, so one set of hooks.

`Client.send` is outside redirects, auth flows and the reading of a body that is not streamed; `_send_single_request` is
one request on the wire. Official instrumentors wrap the transports, below both.
"""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any

from otel_breaker import _guard, _log, keys
from otel_breaker._frames import CIRCUIT, PENDING, Site

from . import _http, _httpx_body


class Family:
    """The hooks of one of the two packages, as wrapt wrappers."""

    def __init__(self, library: str) -> None:
        self.library = library
        self._outer = Site(library, fit=self._fit, judge=self._judge)
        self._hop = Site(library, fit=self._fit, judge=self._judge_hop)
        self._wallet = _http.Wallet()

    def client_send(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """``Client.send``."""
        plan = self._plan(client, args, kwargs)
        if plan is None:
            return wrapped(*args, **kwargs)
        circuit, credential, timeout = plan
        return _guard.call(self._outer, circuit, wrapped, args, kwargs, credential, timeout)

    async def async_client_send(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """``AsyncClient.send``."""
        plan = self._plan(client, args, kwargs)
        if plan is None:
            return await wrapped(*args, **kwargs)
        circuit, credential, timeout = plan
        return await _guard.acall(self._outer, circuit, wrapped, args, kwargs, credential, timeout)

    def client_hop(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """``Client._send_single_request``."""
        frame = self._hop_of(client, args, kwargs)
        if frame is None:
            return wrapped(*args, **kwargs)
        return _guard.call(self._hop, frame[CIRCUIT], wrapped, args, kwargs, of=frame)

    async def async_client_hop(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """``AsyncClient._send_single_request``."""
        frame = self._hop_of(client, args, kwargs)
        if frame is None:
            return await wrapped(*args, **kwargs)
        return await _guard.acall(self._hop, frame[CIRCUIT], wrapped, args, kwargs, of=frame)

    # --- before the call ----------------------------------------------------------------------------------------------

    def _plan(self, client: Any, args: Any, kwargs: Any) -> tuple[Any, str | None, float | None] | None:
        """(circuit, credential, timeout), or ``None`` to stay out of it."""
        try:
            request = args[0] if args else kwargs["request"]
            url, headers = request.url, request.headers
            dependency = _dependency(client, url)
            raw = headers.raw
            exporter, shown = _http.scan(raw)
            if exporter:
                return None
            circuit = _http.circuit_for(dependency, lambda: f"{url.scheme}://{dependency}{url.path}")
            if circuit is None:
                return None
            auth = kwargs.get("auth")
            credential = None  # that of another call's own auth= must not be taken for this one's
            if shown or url.query or url.userinfo or isinstance(auth, tuple):
                credential = _http.visible(raw, str(url), auth)
            elif self._wallet.used and ("auth" not in kwargs or type(auth).__name__ == "UseClientDefault"):
                credential = self._wallet.recall(client, dependency)
            timeout = (request.extensions.get("timeout") or {}).get("read")
            return circuit, credential, timeout
        except Exception as error:
            _log.fault(self.library, f"{self.library}: a call could not be guarded", error)
            return None

    def _hop_of(self, client: Any, args: Any, kwargs: Any) -> Any:
        """The frame of the call that this is a hop of, or ``None``. Learns the credential that is on the wire."""
        try:
            frame = _guard.current_frame(self.library)
            if frame is None:
                return None
            request = args[0] if args else kwargs["request"]
            url, raw = request.url, request.headers.raw
            shown = _http.scan(raw)[1] or bool(url.query or url.userinfo)
            if not shown and not self._wallet.used:  # nothing to learn, nothing to unlearn
                return frame
            dependency = frame[CIRCUIT].key.dependency
            if _dependency(client, url) == dependency:  # a redirect elsewhere is another host's business
                credential = keys.credential_of(raw, str(url)) if shown else None
                _guard.learn(frame, credential)
                self._wallet.learn(client, dependency, credential)
            return frame
        except Exception as error:
            _log.fault(self.library, f"{self.library}: a hop could not be watched", error)
            return None

    # --- after it -----------------------------------------------------------------------------------------------------

    def _judge_hop(self, frame: Any, response: Any) -> Any:
        return _http.answered(frame[CIRCUIT], response.status_code, response.headers)

    def _judge(self, frame: Any, response: Any) -> Any:
        circuit = frame[CIRCUIT]
        outcome = _http.verdict(frame, response)
        if outcome.kind != "success":
            return outcome
        if response.is_closed:  # read to its end inside `send`
            whole = response.status_code != 200 or not _http.wants_json(circuit) or _http.is_json(response.content)
            return outcome if whole else _http.MALFORMED
        if _bodiless(response):
            return outcome
        _httpx_body.watch(self._module, response, _http.Body(frame))
        return PENDING

    @cached_property
    def _module(self) -> Any:
        return importlib.import_module(self.library)

    def _fit(self) -> type[BaseException]:
        fit: type[BaseException] = self._module.HTTPError
        return fit


def _bodiless(response: Any) -> bool:
    """Whether nothing follows the headers (after a 101 what follows is another protocol's)."""
    return (
        response.status_code in (101, 204, 304)
        or response.request.method == "HEAD"
        or response.headers.get("content-length") == "0"
    )


def _dependency(client: Any, url: Any) -> str:
    """The name of the circuit: the host and port, or the unix socket that the transport really talks to."""
    transport = getattr(client, "_transport", None)
    if getattr(client, "_mounts", None):
        transport = client._transport_for_url(url)
    socket = getattr(getattr(transport, "_pool", None), "_uds", None)
    return f"unix:{socket}" if socket else keys.dependency(url.host, url.port, url.scheme)
