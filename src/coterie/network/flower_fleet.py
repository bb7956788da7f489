"""The routes of Flower's Fleet as an application, and nothing else: nobody can submit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from coterie.network.lines import Lines
from coterie.network.listening import Gate, Refusals


def fleet_app(
    factory: Any,
    own_routes: APIRouter,
    *,
    keys: Mapping[bytes, str],
    refusals: Refusals,
    lines: Lines,
) -> FastAPI:
    """The application.

    factory: of Flower's state.  own_routes: count over those of Flower.  keys: the sites' names by
    public key.
    """
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(Gate, keys=keys, refuse=refusals, lines=lines),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(FleetEventLogMiddleware),
        ],
    )
    app.state.linkstate_factory = factory
    app.state.enable_supernode_auth = True  # keys are registered here, never by nodes
    app.state.fleet_event_log_plugin = None
    app.include_router(own_routes)  # before Flower's, so that they count
    app.include_router(fleet_router)
    return app
