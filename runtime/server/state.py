"""What the routes of one server share, made once when it starts."""

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import EngineFace
from ramet.runtime.server.body import read_object
from ramet.runtime.server.chat_prompt import ChatModel
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.engine_questions import EngineQuestions
from ramet.runtime.server.errors import bad_request, model_not_found
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.metrics import ServerMetrics
from ramet.runtime.server.program_runs import ProgramRuns
from ramet.runtime.server.prompt_size import PromptSize
from ramet.runtime.server.response_store import ResponseStore
from ramet.runtime.server.tenants import Tenant
from ramet.runtime.server.tracing import Tracing
from ramet.runtime.tokenizer import TokenizerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    engine: EngineFace
    config: ServerConfig
    gateway: Gateway
    program_runs: ProgramRuns
    metrics: ServerMetrics
    tracing: Tracing
    tokenizer_spec: TokenizerSpec
    chat_model: ChatModel
    prompt_size: PromptSize
    engine_questions: EngineQuestions
    response_store: ResponseStore | None
    """None: responses are not kept."""
    model_names: tuple[str, ...]
    """What the model may be called; the first is what answers say."""
    started: int
    """Unix time, seconds."""

    @property
    def model(self) -> str:
        return self.model_names[0]

    def check_model(self, model: str | None) -> None:
        """Raises HttpError (404) for another model's name; None names none."""
        if model is not None and model not in self.model_names:
            raise model_not_found(model, self.model)

    def require_model(self, model: str | None) -> None:
        """As ``check_model``, for routes whose reference wants one named. Raises HttpError (400) without."""
        if not model:
            raise bad_request(
                f"model is missing; this server has {self.model!r}",
                param="model",
                code="missing_required_parameter",
            )
        self.check_model(model)

    async def read(self, request: Request) -> dict[str, Any]:
        """The request's JSON object, within the server's limits."""
        return await read_object(
            request,
            max_bytes=self.config.max_body_bytes,
            max_depth=self.config.max_json_depth,
            seconds=self.config.read_timeout,
        )


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def tenant_of(request: Request) -> Tenant:
    tenant: Tenant = request.state.tenant
    return tenant


def json_response(record: msgspec.Struct | dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(record), status, media_type="application/json")
