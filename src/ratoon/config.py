"""Every setting, read once. Flags beat the environment, which beats the file, then defaults."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ratoon.errors import ConfigError

ENV_PREFIX = "RATOON_"
DEFAULT_FILE = Path("ratoon.toml")
_CONFLICT: Final = "settings_conflict"

MAX_TOKENS: Final = 1 << 28  # a window or a device larger than any there is
MAX_BATCH: Final = 1 << 20

KvType = Literal["f16", "f32", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
ToolDialect = Literal[
    "auto",
    "hermes",
    "qwen_xml",
    "llama3",
    "mistral",
    "glm",
    "deepseek",
    "kimi",
    "granite",
    "phi",
    "lfm2",
    "gemma",
    "gpt_oss",
]
LogLevel = Literal["debug", "info", "warning", "error"]


def _expanded(path: Path) -> Path:
    """With the home folder in place of ``~``, which only a shell knows."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("there is no such user's home folder") from None


UserPath = Annotated[Path, AfterValidator(_expanded)]


class Settings(BaseSettings):
    """What the operator decides. A count of 0 means: chosen from the model or the machine."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        env_ignore_empty=True,
    )

    model: str | None = Field(
        None,
        min_length=1,
        description="GGUF file, or 'dummy' (no weights); default: the embedded SmolLM2-135M",
    )
    hf: str | None = Field(None, description="model on the Hugging Face hub: owner/repo:file.gguf")
    model_name: str | None = Field(
        None, min_length=1, description="name the API serves the model under; default: its own"
    )
    chat_template: UserPath | None = Field(
        None, description="Jinja2 file used in place of the model's own chat template"
    )
    tool_dialect: ToolDialect = Field(
        "auto", description="how the model writes tool calls; auto: as its chat template tells"
    )

    think: bool = Field(
        True, description="let requests switch reasoning on; off: locked, no request can"
    )
    constrain_tools: bool = Field(
        True, description="let only tool calls and structured output come that fit their schemas"
    )

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8788, ge=0, le=65535, description="port to listen on; 0: any free one")
    api_key: SecretStr | None = Field(
        None, description="key clients must send; required when the host is not loopback"
    )

    keys_file: UserPath | None = Field(
        None, description="more keys, with names, roles and limits; made by `ratoon keys add`"
    )

    n_ctx: int = Field(
        0, ge=0, le=MAX_TOKENS, description="context window in tokens; 0: as the model was trained"
    )
    n_cells: int = Field(
        0, ge=0, le=MAX_TOKENS, description="KV cells on the device; 0: chosen for the machine"
    )
    n_seq: int = Field(0, ge=0, le=256, description="most sequences on the device; 0: chosen")
    n_batch: int = Field(2048, ge=1, le=MAX_BATCH, description="most tokens in one step")
    n_ubatch: int = Field(512, ge=1, le=MAX_BATCH, description="most tokens in one computation")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: one per core")
    n_gpu_layers: int = Field(0, ge=-1, description="layers kept on the GPU; -1: all")
    kv_type: KvType = Field("f16", description="number format of the KV cache")
    flash_attn: FlashAttention = Field("auto", description="flash attention")
    exact: bool = Field(
        False, description="bitwise the same logits with and without the cache; slower, double KV"
    )

    prefill_chunk: int = Field(
        0,
        ge=0,
        le=MAX_BATCH,
        description="most prompt tokens of one request per step while others decode; 0: chosen",
    )
    host_bytes: ByteSize = Field(
        ByteSize(0), description="host memory for saved states, e.g. 4GiB; 0: a quarter of RAM"
    )
    cache_dir: UserPath | None = Field(
        None,
        description="folder for states kept on disk; default: ratoon/states in the user's cache",
    )
    disk_bytes: ByteSize = Field(
        ByteSize(20 << 30), description="most bytes of states kept on disk, all models'; 0: none"
    )
    flush_s: float = Field(
        8.0, ge=0, le=600, description="longest time to write states to disk at the end, in seconds"
    )
    max_queue: int = Field(256, ge=1, description="most requests waiting; above it, 529")

    progress: bool = Field(True, description="log how far each prefill is")
    progress_step: float = Field(10.0, gt=0, le=100, description="percent between two such lines")
    ping_s: float = Field(5.0, gt=0, le=120, description="longest silence on a stream, in seconds")

    temperature: float = Field(0.0, ge=0, le=2, description="used when a request gives none")
    top_k: int = Field(0, ge=0, description="used when a request gives none; 0: off")
    top_p: float = Field(1.0, gt=0, le=1, description="used when a request gives none")
    min_p: float = Field(0.0, ge=0, lt=1, description="smallest probability, relative to the best")

    drop_billing: bool = Field(
        True, description="drop the volatile billing line in front of the system prompt"
    )
    fix_total_tokens: bool = Field(
        True, description="render the 'N tokens left' countdown as one constant"
    )
    hoist_system: bool = Field(
        True, description="render the system messages after the first user message before it"
    )

    replay: bool = Field(
        True, description="put echoed replies back into the prompt as the tokens that were sampled"
    )
    replay_bytes: ByteSize = Field(
        ByteSize(64 << 20), gt=0, description="memory, and disk, for the replies to put back"
    )

    max_domains: int = Field(
        20, ge=1, le=10_000, description="most domains of tools that are registered at a time"
    )
    preload: Annotated[dict[str, UserPath], NoDecode] = Field(
        default_factory=dict,
        description="domains to register at the start: id=tools.json, several with commas",
    )
    allow_hosts: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="hosts, with commas, that tools and language models of requests may be on, "
        "besides OpenAI's, Anthropic's and, for a server on loopback without a keys file, this "
        "machine; *.x: all below x",
    )
    tool_functions: str = Field(
        "",
        description="Python functions for queries with the executor 'callable': module:name of a "
        "mapping from tools' names to functions",
    )
    llm_provider: Literal["openai", "claude", "local"] = Field(
        "local", description="whose language model answers queries where nothing else is set"
    )
    llm_api_key: SecretStr | None = Field(None, description="key for that language model")
    llm_model: str = Field("", description="its name; default: the provider's")
    llm_base_url: str | None = Field(None, min_length=1, description="its server's address")
    high_confidence: float = Field(
        0.7, ge=0, le=1, description="from here on, the router's choice is called"
    )
    low_confidence: float = Field(
        0.2, ge=0, le=1, description="below, no tool is; between, the language model decides"
    )
    enable_thinking: bool = Field(
        False, description="let that language model reason before it answers, where none says so"
    )
    synthesis_temperature: float = Field(
        0.3, ge=0, le=2, description="that language model's temperature when it answers"
    )
    max_synthesis_tokens: int = Field(
        1024, ge=1, le=MAX_TOKENS, description="most tokens of such an answer"
    )
    max_tool_calls: int = Field(10, ge=1, le=1000, description="most tool calls for one query")
    query_timeout_s: float = Field(
        120.0, gt=0, description="longest time for one query, in seconds"
    )

    log_level: LogLevel = Field("info", description="how much is logged")

    @field_validator("preload", mode="before")
    @classmethod
    def _as_pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [item.partition("=") for item in value.split(",") if item.strip()]
        if not all(middle and name.strip() and path.strip() for name, middle, path in pairs):
            raise ValueError("must be id=file, several with commas")
        return {name.strip(): path.strip() for name, _, path in pairs}

    @field_validator("allow_hosts", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return [item.strip() for item in value.split(",") if item.strip()]

    @field_validator("n_ctx", "n_cells")
    @classmethod
    def _is_a_useful_window(cls, value: int) -> int:
        if 0 < value < 256:
            raise ValueError("must be 0 or at least 256")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.n_ubatch > self.n_batch:
            text = f"n_ubatch ({self.n_ubatch}) must not be larger than n_batch ({self.n_batch})"
            raise _conflict(text, "n_ubatch", "n_batch")
        if self.model and self.hf:
            raise _conflict("model and hf exclude each other: both name a model", "model", "hf")
        if not is_loopback(self.host) and not self.key and not self.keys_file:
            text = (
                f"host {self.host} can be reached from other machines, so api_key or keys_file "
                "must be set"
            )
            raise _conflict(text, "host", "api_key")
        if self.low_confidence > self.high_confidence:
            text = "low_confidence must not be above high_confidence"
            raise _conflict(text, "low_confidence", "high_confidence")
        if self.llm_provider != "local" and not (self.llm_api_key or SecretStr("")):
            text = f"llm_provider {self.llm_provider} needs an llm_api_key"
            raise _conflict(text, "llm_provider", "llm_api_key")
        self._check_kv()
        return self

    def _check_kv(self) -> None:
        if self.exact:
            if self.kv_type != "f32" and "kv_type" in self.model_fields_set:
                text = f"exact needs kv_type f32, but kv_type is {self.kv_type}"
                raise _conflict(text, "exact", "kv_type")
            if self.flash_attn == "on":
                raise _conflict("exact needs flash_attn off", "exact", "flash_attn")
        elif self.kv_type.startswith("q") and self.flash_attn == "off":
            text = f"kv_type {self.kv_type} needs flash attention, but flash_attn is off"
            raise _conflict(text, "kv_type", "flash_attn")

    @property
    def key(self) -> str | None:
        """The API key in clear, or ``None`` if every client may come in."""
        return self.api_key.get_secret_value() or None if self.api_key else None

    @property
    def states_dir(self) -> Path:
        """Where states are kept on disk."""
        if self.cache_dir is not None:
            return self.cache_dir
        base = os.environ.get("XDG_CACHE_HOME", "")
        # a relative one is to be ignored, says the XDG base directory specification
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ratoon" / "states"


DEFAULT_URL = (
    f"http://{Settings.model_fields['host'].default}:{Settings.model_fields['port'].default}"
)


def load_settings(flags: Mapping[str, Any], file: Path | None = None) -> Settings:
    """Read all sources. ``flags`` holds only what the user gave on the command line."""
    file = _find_file(file)
    in_file = _read_file(file) if file else {}
    # pydantic-settings ranks what it is handed above the environment, so a value of the file is
    # handed over only where the environment has none.
    below_env = {name: v for name, v in in_file.items() if not os.environ.get(env_name(name))}
    try:
        return Settings(**{**below_env, **flags})
    except ValidationError as error:
        raise ConfigError(_explain(error, flags, in_file, file)) from None


def env_name(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def flag_name(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _find_file(file: Path | None) -> Path | None:
    if file is None and (named := os.environ.get(env_name("config"))):
        file = Path(named)
    if file is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    try:
        return _expanded(file)
    except ValueError as error:
        raise ConfigError(f"can't read the settings file {file}: {error}") from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"can't read the settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _explain(
    error: ValidationError, flags: Mapping[str, Any], in_file: Mapping[str, Any], file: Path | None
) -> str:
    def source(name: str) -> str:
        if name in flags:
            return f"flag {flag_name(name)}"
        if os.environ.get(env_name(name)):
            return f"environment variable {env_name(name)}"
        if name in in_file:
            return f"{name} in {file}"
        return f"default of {name}"

    lines = []
    for item in error.errors(include_url=False):
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == _CONFLICT:
            lines.append(f"{message} ({', '.join(source(name) for name in item['ctx']['names'])})")
            continue
        name = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            lines.append(f"{source(name)}: there is no such setting")
        else:
            shown = "" if name.endswith("api_key") else f" (got {item['input']!r})"
            lines.append(f"{source(name)}: {message[0].lower()}{message[1:]}{shown}")
    return "; ".join(lines)


def _conflict(text: str, *names: str) -> PydanticCustomError:
    return PydanticCustomError(_CONFLICT, "{text}", {"text": text, "names": names})
