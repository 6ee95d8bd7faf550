"""The options of ``ramet serve``. None is not given: the file's value counts, then the default."""

from pathlib import Path
from typing import Annotated

import typer

ENGINE = "Engine"
CACHE = "Memory and cache"
SCHEDULING = "Scheduling"
NETWORK = "Network and access"
LIMITS = "Limits"
FORMATS = "Formats"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="smollm2 (default), gemma3-270m, a .gguf file, a Hugging Face folder, or a hub id.",
        rich_help_panel=ENGINE,
    ),
]
Device = Annotated[
    str | None, typer.Option(help="auto (default), cpu, cuda or cuda:N.", rich_help_panel=ENGINE)
]
Dtype = Annotated[
    str | None, typer.Option(help="auto (default), float32, bfloat16 or float16.", rich_help_panel=ENGINE)
]
Quantization = Annotated[
    str | None,
    typer.Option(
        help="auto (default: int8 on CPU, none on CUDA), none, int8, int4, or fp8 on CUDA.",
        rich_help_panel=ENGINE,
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads; one a physical core if absent.", rich_help_panel=ENGINE)
]
Seed = Annotated[
    int | None,
    typer.Option(help="Where the seeds of requests without one come from.", rich_help_panel=ENGINE),
]
WeightCacheDir = Annotated[
    str | None, typer.Option("--cache-dir", help="Where converted weights are kept.", rich_help_panel=ENGINE)
]
StartTimeout = Annotated[
    float | None, typer.Option(help="Seconds to load the model in [600].", rich_help_panel=ENGINE)
]
ContextLength = Annotated[
    int | None,
    typer.Option(help="Most tokens of prompt and answer; the model's own if absent.", rich_help_panel=CACHE),
]
KvTokens = Annotated[
    int | None,
    typer.Option(help="Size of the KV pool in tokens; from free memory if absent.", rich_help_panel=CACHE),
]
KvCacheDtype = Annotated[
    str | None,
    typer.Option(
        help="auto (default: bfloat16 beside int8 weights where the CPU multiplies it, else the activations' "
        "dtype), float32, bfloat16, float16; on CUDA also fp8 or int8.",
        rich_help_panel=CACHE,
    ),
]
MemoryFraction = Annotated[
    float | None,
    typer.Option(help="Share of the memory for KV, without --kv-tokens.", rich_help_panel=CACHE),
]
PageSize = Annotated[int | None, typer.Option(help="Tokens a KV page [1].", rich_help_panel=CACHE)]
EvictionPolicy = Annotated[str | None, typer.Option(help="lru (default) or lfu.", rich_help_panel=CACHE)]
PrefixCache = Annotated[
    bool | None,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Keep the KV of finished requests (default).",
        rich_help_panel=CACHE,
    ),
]
MaxRunningRequests = Annotated[
    int | None, typer.Option(help="Requests computed in one step [128].", rich_help_panel=SCHEDULING)
]
MaxTokensPerStep = Annotated[
    int | None,
    typer.Option(help="Tokens of one step [512 on CPU, 8192 on CUDA].", rich_help_panel=SCHEDULING),
]
SchedulePolicy = Annotated[
    str | None,
    typer.Option(help="lpm (longest cached prefix first, default) or fcfs.", rich_help_panel=SCHEDULING),
]
MaxOvertakes = Annotated[
    int | None,
    typer.Option(help="How often a waiting request is overtaken at most [64].", rich_help_panel=SCHEDULING),
]
MaxResamples = Annotated[
    int | None,
    typer.Option(
        help="How often an answer that must be validated is drawn again [3].", rich_help_panel=SCHEDULING
    ),
]
MaxQueuedRequests = Annotated[
    int | None,
    typer.Option(help="Answers that wait at most; more get 429 [256].", rich_help_panel=SCHEDULING),
]
MaxPrograms = Annotated[
    int | None,
    typer.Option(help="Whole programs that run at once at most [64].", rich_help_panel=SCHEDULING),
]
MaxSessions = Annotated[
    int | None,
    typer.Option(help="Sessions that one key may have open [256].", rich_help_panel=SCHEDULING),
]
Host = Annotated[str | None, typer.Option(help="Address to bind [127.0.0.1].", rich_help_panel=NETWORK)]
Port = Annotated[int | None, typer.Option(help="0: a free one [8000].", rich_help_panel=NETWORK)]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        help="A key that clients send; several times for several. Others on this machine can see it: prefer "
        "--api-key-file or RAMET_API_KEY.",
        rich_help_panel=NETWORK,
    ),
]
ApiKeyFile = Annotated[Path | None, typer.Option(help="A file with a key a line.", rich_help_panel=NETWORK)]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin", help="An origin whose pages may call from browsers.", rich_help_panel=NETWORK
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name",
        help="What clients call the model; several times for several.",
        rich_help_panel=NETWORK,
    ),
]
KeepAliveTimeout = Annotated[
    int | None, typer.Option(help="Seconds an idle connection stays open [75].", rich_help_panel=LIMITS)
]
ReadTimeout = Annotated[
    float | None,
    typer.Option(help="Seconds for a request's head, and then its body, to come [60].", rich_help_panel=LIMITS),
]
WriteTimeout = Annotated[
    float | None,
    typer.Option(help="Seconds that a client may leave an answer unread [60].", rich_help_panel=LIMITS),
]
HangTimeout = Annotated[
    float | None,
    typer.Option(
        help="Seconds without a sign of life after which the engine is started again [120]; 0: never.",
        rich_help_panel=LIMITS,
    ),
]
RequestTimeout = Annotated[
    float | None, typer.Option(help="Seconds a request may take [3600].", rich_help_panel=LIMITS)
]
DrainTimeout = Annotated[
    float | None,
    typer.Option(help="Seconds that running requests get after SIGTERM [30].", rich_help_panel=LIMITS),
]
MaxBodyBytes = Annotated[
    int | None, typer.Option(help="Largest body of a request [32 MiB].", rich_help_panel=LIMITS)
]
MaxJsonDepth = Annotated[
    int | None, typer.Option(help="Deepest nesting of a request [64].", rich_help_panel=LIMITS)
]
ResponseStore = Annotated[
    Path | None,
    typer.Option(help="A SQLite file for responses with store: true; none: not kept.", rich_help_panel=NETWORK),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel",
        help="Send traces to an OpenTelemetry collector, see OTEL_EXPORTER_OTLP_ENDPOINT.",
        rich_help_panel=NETWORK,
    ),
]
ToolFormat = Annotated[
    str | None,
    typer.Option(
        help="How the model writes tool calls: auto (default), hermes, llama3, mistral or json.",
        rich_help_panel=FORMATS,
    ),
]
ReasoningFormat = Annotated[
    str | None,
    typer.Option(
        help="How it marks reasoning: auto (default), none, qwen3, deepseek-r1, ...", rich_help_panel=FORMATS
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML file with these settings: max_running_requests = 64, ...", exists=False),
]
