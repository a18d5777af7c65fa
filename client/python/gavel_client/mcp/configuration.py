"""The configuration of the proxy: a YAML file that `gavel mcp scaffold` writes and people edit.

    agent: {id: coding-agent}
    servers:
      git:
        command: [mcp-server-git, --repository, .]
        tools:
          git_status:
            mode: read
            subject: '"repository/" + arguments.repo_path'
            fields: {git.clean: 'result.text.contains("working tree clean")'}

Secrets are not written into the file: they come from the environment or from files (`from_env`, `from_file`). Paths are relative to the
folder of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from gavel_client.mcp.errors import ConfigurationError, ExpressionError
from gavel_client.mcp.expressions import Expression
from gavel_client.yaml_documents import Mistake, place_of, place_of_key, read_yaml

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
FIELDS_MAX: Final = 32

# Two underscores separate the server's name from the tool's in the names that clients see.
ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*(?:_[a-z0-9-]+)*$", max_length=32)]
FactKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)*$", max_length=256)]
ProducerId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@/-]{1,128}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Secret(_Part):
    """A value that is not in the file. `prefix` stands before it, e.g. "Bearer "."""

    from_env: str = ""
    from_file: str = ""
    prefix: str = ""

    @model_validator(mode="after")
    def _has_one_source(self) -> Secret:
        if bool(self.from_env) == bool(self.from_file):
            raise ValueError("give exactly one of from_env and from_file")
        return self

    def read(self, folder: Path) -> str:
        """Return the value. Raises ConfigurationError, which does not hold the value."""
        if self.from_env:
            value = os.environ.get(self.from_env, "")
            if not value:
                raise ConfigurationError([f"the environment variable {self.from_env} is not set"])
            return self.prefix + value
        path = folder / self.from_file
        try:
            value = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError([f"cannot read {path}: {type(error).__name__}"]) from error
        if not value:
            raise ConfigurationError([f"{path} is empty"])
        return self.prefix + value


class ToolSettings(_Part):
    """The settings of one tool."""

    mode: Literal["read", "propose"] = "propose"
    """`read`: the call is made and witnessed. `propose`: the call becomes a proposal."""
    digest: str = ""
    """The digest of the definition that was reviewed. Empty: the first one that the proxy sees."""
    subject: str = ""
    """CEL over `arguments`: the subject "type/id". Empty: "mcp-server/NAME"."""
    fields: Annotated[dict[FactKey, str], Field(max_length=FIELDS_MAX)] = Field(default_factory=dict)
    """CEL over `arguments` and `result` by fact key. Of a read they become an OBSERVATION, of an effect a part of the report."""
    on_error: Literal["aborted", "partial"] = "aborted"
    """The meaning of an error that the tool reports: it had no effect, or its effect is unknown and a person has to look at it."""


class ServerSettings(_Part):
    """One upstream server: a `command` that is started, or the `url` of its streamable HTTP endpoint."""

    command: list[str] = Field(default_factory=list)
    directory: str = ""
    env: dict[str, str | Secret] = Field(default_factory=dict)
    url: str = ""
    headers: dict[str, Secret] = Field(default_factory=dict)
    timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 60_000
    result_bytes_max: Annotated[int, Field(ge=1_024, le=64 * 1024 * 1024)] = 1024 * 1024
    tools: dict[str, ToolSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_transport(self) -> ServerSettings:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        if self.url and not re.match(r"https?://", self.url):
            raise ValueError("url must begin with http:// or https://")
        if self.url and (self.env or self.directory):
            raise ValueError("env and directory belong to a command")
        if self.command and self.headers:
            raise ValueError("headers belong to a url")
        return self


class AgentSettings(_Part):
    """The agent in whose name the proxy proposes and observes: the producer's `id` in the log."""

    id: ProducerId
    gavel_token: Secret | None = None
    """The agent's own token for Gavel. Without it the proxy's own credentials are used."""
    token: Secret | None = None
    """The token that a client of the HTTP endpoint sends to be this agent. Needed beyond the loopback interface."""


class Configuration(_Part):
    """A whole configuration."""

    agent: AgentSettings | None = None
    agents: list[AgentSettings] = Field(default_factory=list)
    """For the HTTP endpoint: several agents, each with a token."""
    servers: Annotated[dict[ServerName, ServerSettings], Field(min_length=1, max_length=64)]
    state: str = "gavel-mcp-state"
    """Folder for open calls and for evidence."""
    max_fact_age_ms: Annotated[int, Field(ge=1, le=315_360_000_000)] = 86_400_000
    """The greatest age of evidence that a proposal accepts."""

    @model_validator(mode="after")
    def _has_agents(self) -> Configuration:
        if bool(self.agent) == bool(self.agents):
            raise ValueError("give either agent or agents")
        if any(agent.token is None for agent in self.agents):
            raise ValueError("each of several agents needs a token, by which the proxy tells them apart")
        names = [agent.id for agent in self.agents]
        if len(set(names)) < len(names):
            raise ValueError("two agents have the same id")
        return self

    def settings(self, server: str, tool: str) -> ToolSettings:
        """Return how a tool is governed. One that the configuration does not name is an effect."""
        return self.servers[server].tools.get(tool, _UNNAMED)

    def tokens(self, folder: Path) -> dict[str, str]:
        """Return the agent of each token. Raises ConfigurationError for a token that is not there, or that two agents share."""
        tokens: dict[str, str] = {}
        for agent in self.all_agents:
            if agent.token is not None:
                other = tokens.setdefault(agent.token.read(folder), agent.id)
                if other != agent.id:
                    raise ConfigurationError(
                        [f"the agents {other} and {agent.id} have the same token, by which the proxy tells them apart"]
                    )
        return tokens

    @property
    def all_agents(self) -> list[AgentSettings]:
        """The agents, of which there is at least one."""
        return [self.agent] if self.agent is not None else self.agents


_UNNAMED: Final = ToolSettings()


def load_configuration(path: Path) -> Configuration:
    """Return the configuration of a file. Raises ConfigurationError with all mistakes, OSError if the file cannot be read."""
    content = path.read_bytes()
    mistakes: list[Mistake] = []
    document: Any = None
    if len(content) > DOCUMENT_BYTES_MAX:
        mistakes.append(Mistake(1, 1, "too-large", f"the file is larger than {DOCUMENT_BYTES_MAX} bytes"))
    else:
        document = read_yaml(content.decode("utf-8", errors="replace"), mistakes)
    configuration = None
    if not mistakes:
        try:
            configuration = Configuration.model_validate(document)
        except ValidationError as error:
            mistakes.extend(_mistake(document, one) for one in error.errors(include_url=False, include_input=False))
        else:
            mistakes.extend(_expression_mistakes(document, configuration))
    if configuration is None or mistakes:
        raise ConfigurationError([mistake.format(str(path)) for mistake in sorted(set(mistakes))])
    return configuration


def _mistake(document: Any, error: Mapping[str, Any]) -> Mistake:
    """Return an error of validation with its place."""
    location = [part for part in error["loc"] if part != "[key]" and part not in ("str", "Secret")]
    path = ".".join(map(str, location))
    message = str(error["msg"]).removeprefix("Value error, ")
    suggestion = ""
    if error["type"] == "extra_forbidden":
        message = f"{path} is not a key here"
        near = get_close_matches(str(location[-1]), _KEYS, n=1)
        suggestion = f"did you mean {near[0]}?" if near else ""
    elif path:
        message = f"{path}: {message[:1].lower()}{message[1:]}"
    return Mistake(*_find_place(document, location), str(error["type"]).replace("_", "-"), message, suggestion)


def _find_place(document: Any, location: list[Any]) -> tuple[int, int]:
    """Return the place of an item, or of the nearest one around it that exists."""
    place, container = (1, 1), document
    for part in location:
        try:
            place = (
                place_of(container, part) if not isinstance(container, dict) or container[part] is None else place_of_key(container, part)
            )
            container = container[part]
        except (KeyError, IndexError, TypeError, AttributeError):
            break
    return place


def _expression_mistakes(document: Any, configuration: Configuration) -> list[Mistake]:
    mistakes: list[Mistake] = []

    def check(source: str, location: list[str], compile_expression: Callable[[str], Expression]) -> None:
        try:
            compile_expression(source)
        except ExpressionError as error:
            mistakes.append(Mistake(*_find_place(document, location), "expression", f"{'.'.join(location)}: {error}"))

    for server_name, server in configuration.servers.items():
        for tool_name, tool in server.tools.items():
            place = ["servers", server_name, "tools", tool_name]
            if tool.subject:
                check(tool.subject, [*place, "subject"], lambda source: Expression(source, reads_result=False))
            for key, source in tool.fields.items():
                check(source, [*place, "fields", key], lambda source: Expression(source, reads_result=True))
    return mistakes


_KEYS: Final = sorted({name for part in (Secret, ToolSettings, ServerSettings, AgentSettings, Configuration) for name in part.model_fields})
