"""httpx: `Client.send` and `AsyncClient.send`, and each request on the wire below them."""

from __future__ import annotations

from ._httpx_family import Family

_family = Family("httpx")

client_send = _family.client_send
async_client_send = _family.async_client_send
client_hop = _family.client_hop
async_client_hop = _family.async_client_hop
