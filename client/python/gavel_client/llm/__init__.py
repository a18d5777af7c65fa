"""Language models, in three layers.

Each passes on the whole result of the one below (constitution 003).

*Provider*: one model behind one API (`openai_responses`, `chat_completions`, `anthropic_messages`). The official SDKs are used inside, and
none of their types is visible. *Service* (`LLMService`): retries and failover over several providers, JSON output, and a diagnostic event
for each call. *Agent* (`Agent`): turns of a model and its tools.
"""

from gavel_client.llm.agent import Agent
from gavel_client.llm.agent_results import AgentResponse, AgentStoppedError, AgentTurn, ToolExecutionResult
from gavel_client.llm.agent_tools import ActionTool, AgentRun, AgentTool, FinalAnswer, RuntimeTool, runtime_tool
from gavel_client.llm.attempts import RetryPolicy
from gavel_client.llm.errors import (
    InvalidOutputError,
    InvalidRequestError,
    LLMError,
    LLMFailedError,
    LLMProviderError,
    MissingPackageError,
    UnknownProviderEvent,
)
from gavel_client.llm.invocations import InvocationRecorder, LLMContext
from gavel_client.llm.models import (
    LLMCitationRef,
    LLMProviderMeta,
    LLMResponse,
    LLMSafetyAnnotation,
    LLMSegment,
    LLMStreamChunk,
    LLMStreamError,
    LLMStreamEvent,
    LLMToolCall,
    LLMUsage,
)
from gavel_client.llm.provider import LLMProvider, ModelProvider
from gavel_client.llm.providers.anthropic_sdk import anthropic_messages
from gavel_client.llm.providers.openai_sdk import chat_completions, openai_responses
from gavel_client.llm.requests import (
    AssistantMessage,
    LLMMessage,
    LLMRequest,
    LLMSettings,
    LLMTool,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from gavel_client.llm.service import LLMJson, LLMService

__all__ = [
    "ActionTool",
    "Agent",
    "AgentResponse",
    "AgentRun",
    "AgentStoppedError",
    "AgentTool",
    "AgentTurn",
    "AssistantMessage",
    "FinalAnswer",
    "InvalidOutputError",
    "InvalidRequestError",
    "InvocationRecorder",
    "LLMCitationRef",
    "LLMContext",
    "LLMError",
    "LLMFailedError",
    "LLMJson",
    "LLMMessage",
    "LLMProvider",
    "LLMProviderError",
    "LLMProviderMeta",
    "LLMRequest",
    "LLMResponse",
    "LLMSafetyAnnotation",
    "LLMSegment",
    "LLMService",
    "LLMSettings",
    "LLMStreamChunk",
    "LLMStreamError",
    "LLMStreamEvent",
    "LLMTool",
    "LLMToolCall",
    "LLMUsage",
    "MissingPackageError",
    "ModelProvider",
    "RetryPolicy",
    "RuntimeTool",
    "SystemMessage",
    "ToolExecutionResult",
    "ToolMessage",
    "UnknownProviderEvent",
    "UserMessage",
    "anthropic_messages",
    "chat_completions",
    "openai_responses",
    "runtime_tool",
]
