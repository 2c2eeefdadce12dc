"""The alias package has every documented name under its documented path, and loads nothing until it is used."""

import importlib
import subprocess
import sys

import pytest

import osmosis_ai
from osmosis_ai import _finder as table

TOP = """__version__ osmosis_reward osmosis_rubric evaluate_rubric MissingAPIKeyError ProviderRequestError
ModelNotFoundError RolloutAgentLoop RolloutContext RolloutResult OsmosisLLMClient CompletionsResult create_app
register_agent_loop get_agent_loop list_agent_loops RolloutRequest RolloutResponse InitResponse
OpenAIFunctionToolSchema RolloutMetrics OsmosisRolloutError OsmosisTransportError OsmosisServerError
OsmosisValidationError OsmosisTimeoutError"""

ROLLOUT = """RolloutAgentLoop RolloutContext RolloutResult OsmosisLLMClient CompletionsResult LLMClientProtocol
create_app serve_agent_loop validate_and_report ServeError DEFAULT_HOST DEFAULT_PORT
validate_agent_loop ValidationResult ValidationError AgentLoopValidationError
AgentLoopRegistry register_agent_loop unregister_agent_loop get_agent_loop list_agent_loops
RolloutRequest RolloutResponse InitResponse RolloutStatus RolloutMetrics CompletionsRequest CompletionsResponse
CompletionsChoice CompletionUsage OpenAIFunctionToolSchema OpenAIFunctionSchema OpenAIFunctionParametersSchema
OpenAIFunctionPropertySchema OpenAIFunctionParsedSchema OpenAIFunctionCallSchema OpenAIFunctionToolCall ToolResponse
MessageDict SamplingParamsDict DEFAULT_MAX_METADATA_SIZE_BYTES get_max_metadata_size_bytes set_max_metadata_size_bytes
OsmosisRolloutError OsmosisTransportError OsmosisServerError OsmosisValidationError OsmosisTimeoutError
AgentLoopNotFoundError ToolExecutionError ToolArgumentError
create_tool_result create_tool_error_result serialize_tool_result parse_tool_arguments get_tool_call_info
execute_tool_calls parse_tool_calls normalize_stop get_message_content get_message_role is_assistant_message
is_tool_message is_user_message count_messages_by_role
detect_public_ip PublicIPDetectionError validate_ipv4 is_valid_hostname_or_ip is_private_ip
RolloutSettings RolloutClientSettings RolloutServerSettings get_settings configure reset_settings"""

UNION = """AgentWorkflow AgentWorkflowContext AgentWorkflowConfig Grader GraderContext GraderConfig LocalBackend
create_rollout_server RolloutSample get_rollout_context"""

PUBLISHED_03 = """AgentWorkflowOutput BaseConfig ConcurrencyConfig ExecutionBackend ExecutionOutcome ExecutionRequest
ExecutionResult RolloutErrorCategory RolloutInitRequest RolloutInitResponse RolloutResultResponse SampleSource"""
"""With `UNION`, `__all__` of `osmosis_ai.rollout` in the published 0.3.8."""

MODULES = {
    "osmosis_ai": f"{TOP} {UNION} RubricResult",
    "osmosis_ai.rollout": f"{ROLLOUT} {UNION} {PUBLISHED_03}",
    "osmosis_ai.cli": "main",
    "osmosis_ai.cli_commands": "eval_rubric preview",
    "osmosis_ai.cli_services": "CLIError load_rubric_suite load_rubric_configs RubricSuite ParsedItem RubricEvaluator",
    "osmosis_ai.cli_services.config": "load_rubric_suite load_rubric_configs RubricSuite ParsedItem",
    "osmosis_ai.cli_services.dataset": "RubricRecord",
    "osmosis_ai.cli_services.engine": "RubricEvaluator",
    "osmosis_ai.cli_services.errors": "CLIError",
    "osmosis_ai.cli_services.reporting": "build_report",
    "osmosis_ai.cli_services.session": "run_rubric",
    "osmosis_ai.cli_services.shared": "STATISTICS",
    "osmosis_ai.auth": "login LoginError get_valid_credentials platform_request",
    "osmosis_ai.auth.config": "platform_url",
    "osmosis_ai.auth.credentials": "WorkspaceCredentials get_valid_credentials get_all_workspaces",
    "osmosis_ai.auth.flow": "login LoginError LoginResult",
    "osmosis_ai.auth.local_server": "LoginError",
    "osmosis_ai.auth.platform_client": "platform_request AuthenticationExpiredError PlatformAPIError",
    "osmosis_ai.consts": "PACKAGE_VERSION package_name",
    "osmosis_ai.rubric_eval": "evaluate_rubric ensure_api_key_available DEFAULT_API_KEY_ENV "
    "DEFAULT_REQUEST_TIMEOUT_SECONDS",
    "osmosis_ai.rubric_types": "ModelInfo RewardRubricRunResult MissingAPIKeyError ProviderRequestError",
    "osmosis_ai.utils": "osmosis_reward osmosis_rubric",
    "osmosis_ai.eval.rubric": "evaluate_rubric RubricResult",
    "osmosis_ai.rollout.client": "OsmosisLLMClient",
    "osmosis_ai.rollout.cli": "serve validate test",
    "osmosis_ai.rollout.cli_utils": "CLIError",
    "osmosis_ai.rollout.console": "Console console RICH_AVAILABLE",
    "osmosis_ai.rollout.network": "detect_public_ip",
    "osmosis_ai.rollout.registry": "AgentLoopRegistry AgentLoopNotFoundError",
    "osmosis_ai.rollout.testing": "create_mock_trainer_app RolloutCompletionTracker patch_httpx_for_mock_trainer "
    "fake_token_ids fake_prompt_token_ids",
    "osmosis_ai.rollout.tools": "execute_tool_calls",
    "osmosis_ai.rollout.utils": "normalize_stop",
    "osmosis_ai.rollout.validator": "validate_agent_loop ValidationError",
    "osmosis_ai.rollout._compat": "RICH_AVAILABLE",
    "osmosis_ai.rollout.core": "RolloutAgentLoop RolloutRequest ToolArgumentError",
    "osmosis_ai.rollout.core.base": "RolloutAgentLoop RolloutContext RolloutResult",
    "osmosis_ai.rollout.core.exceptions": "ToolArgumentError",
    "osmosis_ai.rollout.core.llm_client": "LLMClientProtocol CompletionsResult",
    "osmosis_ai.rollout.core.schemas": "RolloutStatus OpenAIFunctionToolSchema",
    "osmosis_ai.rollout.config": "RolloutSettings get_settings",
    "osmosis_ai.rollout.config.settings": "RolloutSettings configure",
    "osmosis_ai.rollout.server": "create_app AppState serve_agent_loop validate_and_report ServeError DEFAULT_HOST "
    "DEFAULT_PORT generate_api_key validate_api_key create_rollout_server",
    "osmosis_ai.rollout.server.api_key": "generate_api_key validate_api_key API_KEY_PREFIX",
    "osmosis_ai.rollout.server.app": "create_app",
    "osmosis_ai.rollout.server.registration": "RegistrationResult",
    "osmosis_ai.rollout.server.serve": "serve_agent_loop",
    "osmosis_ai.rollout.server.state": "AppState",
    "osmosis_ai.rollout.eval.common.cli": "format_duration format_tokens",
    "osmosis_ai.rollout.eval.common.dataset": "DatasetReader DatasetRow dataset_row_to_request REQUIRED_COLUMNS",
    "osmosis_ai.rollout.eval.common.errors": "LocalExecutionError DatasetValidationError DatasetParseError "
    "ToolValidationError ProviderError",
    "osmosis_ai.rollout.eval.common.llm_client": "ExternalLLMClient",
    "osmosis_ai.rollout.eval.common.runner": "LocalRolloutRunner LocalRunResult LocalBatchResult validate_tools",
    "osmosis_ai.rollout.eval.test_mode.cli": "test",
    "osmosis_ai.rollout.eval.test_mode.interactive": "InteractiveRunner InteractiveLLMClient InteractiveStep",
    "osmosis_ai.rollout.eval.test_mode.runner": "LocalTestRunner LocalTestRunResult LocalTestBatchResult",
    "osmosis_ai.rollout.eval.evaluation.cli": "local_eval",
    "osmosis_ai.rollout.eval.evaluation.eval_fn": "EvalFnWrapper EvalFnError load_eval_fn load_eval_fns",
    "osmosis_ai.rollout.eval.evaluation.report": "format_duration",
    "osmosis_ai.rollout.eval.evaluation.runner": "EvalRunner EvalRunResult EvalResult EvalRowResult EvalEvalSummary "
    "pass_at_k",
    "osmosis_ai.rollout.agent_workflow": "AgentWorkflow AgentWorkflowOutput AgentWorkflowConfig AgentWorkflowContext",
    "osmosis_ai.rollout.context": "AgentWorkflowContext GraderContext RolloutContext get_rollout_context SampleSource "
    "RolloutSample RolloutStatus AgentWorkflowConfig",
    "osmosis_ai.rollout.grader": "Grader GraderConfig GraderContext",
    "osmosis_ai.rollout.types": "POLLING_LEASE_HEADER AgentWorkflowConfig AgentWorkflowOutput BaseConfig "
    "CancelRolloutsRequest CancelRolloutsResponse ConcurrencyConfig ExecutionOutcome ExecutionRequest ExecutionResult "
    "GraderConfig MessageDict Messages RolloutErrorCategory RolloutInitRequest RolloutInitResponse RolloutLifecycle "
    "RolloutResultResponse RolloutSample RolloutStatus",
    "osmosis_ai.rollout.backend.local": "LocalBackend",
    "osmosis_ai.rollout.backend.harbor": "HarborBackend",
}
EXTRAS = {"osmosis_ai.rollout.integrations.agents.openai_agents", "osmosis_ai.rollout.integrations.agents.strands"}
"""Held by `tests/flow/alias`: they load a whole agent library."""


@pytest.mark.parametrize("module", MODULES)
def test_names_are_there(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in MODULES[module].split() if getattr(found, name, None) is None]
    assert missing == []
    assert set(MODULES[module].split()) <= {*found.__all__, "__version__", "package_name"}


def test_a_word_of_both_generations_means_what_its_module_is_of() -> None:
    newer = importlib.import_module("osmosis_ai.rollout.types").RolloutStatus
    assert newer("success") == newer.SUCCESS == "success"
    assert importlib.import_module("osmosis_ai.rollout").RolloutStatus is not newer


def test_every_module_is_in_the_list() -> None:
    known = {*MODULES, *EXTRAS}
    packages = {module for module in table.MODULES if table.is_package(module)}
    assert {*table.MODULES} - packages - known == set()
    assert known - {*table.MODULES} == {"osmosis_ai.cli"}


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("osmosis_ai.rollout.nothing")
    with pytest.raises(ImportError, match="nothing"):
        exec("from osmosis_ai.rollout import nothing")


def test_names_can_be_taken_with_a_star_and_listed() -> None:
    names: dict[str, object] = {}
    exec("from osmosis_ai.rollout.core.base import *", names)
    assert names["RolloutAgentLoop"] is osmosis_ai.RolloutAgentLoop
    assert "RolloutAgentLoop" in dir(importlib.import_module("osmosis_ai.rollout"))


def test_nothing_is_implemented_here() -> None:
    for module in MODULES:
        found = importlib.import_module(module)
        own = [
            name
            for name in getattr(found, "__all__", ())
            if getattr(getattr(found, name), "__module__", "osmosis.").startswith("osmosis_ai")
        ]
        assert own == [], module


def test_one_name_of_two_generations() -> None:
    from osmosis_ai.eval.rubric import evaluate_rubric as of_03
    from osmosis_ai.rollout import RolloutContext, RolloutStatus
    from osmosis_ai.rollout.context import RolloutContext as Of03

    assert RolloutContext is osmosis_ai.RolloutContext
    assert RolloutContext is not Of03
    assert [one.value for one in RolloutStatus] == ["COMPLETED", "ERROR"]
    assert of_03 is not osmosis_ai.evaluate_rubric


def test_importing_loads_no_library() -> None:
    program = (
        "import sys, osmosis_ai, osmosis_ai.rollout, osmosis_ai.rollout.server;"
        "heavy = {'litellm', 'openai', 'torch', 'fastapi', 'pydantic', 'aiohttp', 'rich', 'sqlalchemy', 'copier'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="'osmosis_ai' has no attribute 'nothing'"):
        osmosis_ai.nothing  # noqa: B018
