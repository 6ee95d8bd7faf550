"""``ramet serve``: the model over HTTP."""

import json
from typing import TYPE_CHECKING, Any

from ramet.runtime.cli import options
from ramet.runtime.cli import serve_options as given
from ramet.runtime.env import environment
from ramet.runtime.logs import configure_logging
from ramet.runtime.server.settings import ServeSettings, serve_settings

if TYPE_CHECKING:
    from ramet.runtime.engine import EngineProcess


def serve(
    model: given.Model = None,
    device: given.Device = None,
    dtype: given.Dtype = None,
    quantization: given.Quantization = None,
    threads: given.Threads = None,
    seed: given.Seed = None,
    cache_dir: given.WeightCacheDir = None,
    start_timeout: given.StartTimeout = None,
    context_length: given.ContextLength = None,
    kv_tokens: given.KvTokens = None,
    kv_cache_dtype: given.KvCacheDtype = None,
    memory_fraction: given.MemoryFraction = None,
    page_size: given.PageSize = None,
    eviction_policy: given.EvictionPolicy = None,
    enable_prefix_cache: given.PrefixCache = None,
    max_running_requests: given.MaxRunningRequests = None,
    max_tokens_per_step: given.MaxTokensPerStep = None,
    schedule_policy: given.SchedulePolicy = None,
    max_overtakes: given.MaxOvertakes = None,
    max_resamples: given.MaxResamples = None,
    max_queued_requests: given.MaxQueuedRequests = None,
    max_programs: given.MaxPrograms = None,
    max_sessions: given.MaxSessions = None,
    host: given.Host = None,
    port: given.Port = None,
    api_keys: given.ApiKey = None,
    api_key_file: given.ApiKeyFile = None,
    cors_origins: given.CorsOrigin = None,
    served_model_names: given.ServedModelName = None,
    keep_alive_timeout: given.KeepAliveTimeout = None,
    read_timeout: given.ReadTimeout = None,
    write_timeout: given.WriteTimeout = None,
    hang_timeout: given.HangTimeout = None,
    request_timeout: given.RequestTimeout = None,
    drain_timeout: given.DrainTimeout = None,
    max_body_bytes: given.MaxBodyBytes = None,
    max_json_depth: given.MaxJsonDepth = None,
    response_store: given.ResponseStore = None,
    otel: given.Otel = None,
    tool_format: given.ToolFormat = None,
    reasoning_format: given.ReasoningFormat = None,
    config: given.Config = None,
) -> None:
    """Serve a model over HTTP: OpenAI's chat and text completions, and ramet's own routes.

    The command line counts before the file of --config, and that before the defaults in brackets. SIGTERM and
    Ctrl-C let running requests finish. See docs/server.md.
    """
    named = {name: value for name, value in locals().items() if name != "config"}
    # Before anything is loaded, so that a wrong value costs no time.
    run(serve_settings(named, config, environment().api_keys))


def run(settings: ServeSettings) -> None:
    """Serves until told to end; says so when it is ready."""
    configure_logging("server", environment().log_level, environment().log_format)
    options.notes.print(f"loading {settings.engine.model} ...", style="dim", markup=False)
    # The web framework takes a while, which `ramet --help` need not wait for.
    from ramet.runtime.server.serve import serve as serve_until_told

    serve_until_told(settings, lambda engine, url: announce(settings, engine, url))


def announce(settings: ServeSettings, engine: "EngineProcess", url: str) -> None:
    """Says what is served, where, and how to call it."""
    info = engine.info
    name = (settings.server.served_model_names or (info.model,))[0]
    keys = settings.server.api_keys
    access = f"{len(keys)} API key{'s' if len(keys) != 1 else ''}" if keys else "no API key"
    lines = [
        f"ramet serves {name} on {url} ({info.quantization if info.quantization != 'none' else info.dtype} on "
        f"{info.device}, context {info.context_length} tokens, KV pool {info.kv_tokens} tokens, {access})",
        curl_line(url, name, needs_key=bool(keys)),
    ]
    for line in lines:
        options.notes.print(line, markup=False, soft_wrap=True)


def curl_line(url: str, model: str, *, needs_key: bool) -> str:
    """A command that asks the server something."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    # A single quote would end the shell's string.
    data = json.dumps(body).replace("'", "'\\''")
    return f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{data}'"
