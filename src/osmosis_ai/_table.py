"""The one table of `osmosis_ai`: which module of generations 0.2 and 0.3 offers the names of which of ours.

A plain table, so that a name that moves is changed in one place. Imports nothing; the stubs for type checkers are
written from it when the package is built.
"""

from __future__ import annotations

HOMES: dict[str, str] = {
    "osmosis._version": "PACKAGE_VERSION=__version__ __version__ package_name=DISTRIBUTION",
    "osmosis.base.paths": "DEFAULT_PLATFORM_URL",
    "osmosis.classic.login": """
        AuthenticationExpiredError LoginError LoginResult PlatformAPIError WorkspaceCredentials get_all_workspaces
        get_valid_credentials login platform_request""",
    "osmosis.classic.dataset_reader": "DatasetReader DatasetRow REQUIRED_COLUMNS dataset_row_to_request",
    "osmosis.classic.errors": """
        DatasetParseError DatasetValidationError EvalFnError LocalExecutionError ProviderError ToolValidationError""",
    "osmosis.classic.evaluation": """
        EvalEvalSummary EvalFnWrapper EvalResult EvalRowResult EvalRunResult EvalRunner load_eval_fn load_eval_fns
        pass_at_k""",
    "osmosis.classic.interactive": "InteractiveLLMClient InteractiveRunner InteractiveStep",
    "osmosis.classic.llm_client": "ExternalLLMClient",
    "osmosis.classic.registry": """
        AgentLoopRegistry get_agent_loop list_agent_loops register_agent_loop unregister_agent_loop""",
    "osmosis.classic.rubric": "RubricEvaluator",
    "osmosis.classic.runner": """
        LocalBatchResult LocalRolloutRunner LocalRunResult LocalTestBatchResult=LocalBatchResult
        LocalTestRunResult=LocalRunResult LocalTestRunner validate_tools""",
    "osmosis.cli.agent_test.command": "test",
    "osmosis.cli.agent_test.show": "format_duration format_tokens",
    "osmosis.cli.local_eval.command": "local_eval",
    "osmosis.cli.rubric": "eval_rubric preview",
    "osmosis.cli.serve": "serve",
    "osmosis.cli.validate": "validate",
    "osmosis.client.settings": "platform_url",
    "osmosis.engine.agent": "load_agent",
    "osmosis.engine.rubrics.conversations": "RubricRecord load_rubric_records",
    "osmosis.engine.rubrics.rubric_files": "ParsedItem RubricConfig RubricSuite load_rubric_configs load_rubric_suite",
    "osmosis.engine.rubrics.rubric_report": "Baseline STATISTICS build_report summarise",
    "osmosis.engine.rubrics.rubric_run": "RubricJob RubricRun run_rubric",
    "osmosis.errors": "CLIError=OsmosisError",
    "osmosis.records.loop_request": """
        DEFAULT_MAX_METADATA_SIZE_BYTES MessageDict RolloutMetrics RolloutRequest RolloutStatus=LoopStatus
        SamplingParamsDict get_max_metadata_size_bytes set_max_metadata_size_bytes""",
    "osmosis.records.tool_schema": """
        OpenAIFunctionCallSchema OpenAIFunctionParametersSchema OpenAIFunctionParsedSchema
        OpenAIFunctionPropertySchema OpenAIFunctionSchema OpenAIFunctionToolCall OpenAIFunctionToolSchema
        ToolResponse""",
    "osmosis.records.wire02": """
        CompletionUsage CompletionsChoice CompletionsRequest CompletionsResponse InitResponse RolloutResponse""",
    "osmosis.llm.provider_variables": "DEFAULT_API_KEY_ENV",
    "osmosis.sdk.agent_loop": "CompletionsResult LLMClientProtocol RolloutAgentLoop RolloutContext RolloutResult",
    "osmosis.sdk.backend": "ExecutionResult LocalBackend",
    "osmosis.sdk.context": "AgentWorkflowContext GraderContext SampleSource get_rollout_context",
    "osmosis.sdk.evaluate_rubric": "RubricResult evaluate_rubric evaluate_rubric_async",
    "osmosis.sdk.exceptions": """
        AgentLoopNotFoundError OsmosisRolloutError OsmosisServerError OsmosisTimeoutError OsmosisTransportError
        OsmosisValidationError ToolArgumentError ToolExecutionError""",
    "osmosis.sdk.grader": "Grader",
    "osmosis.sdk.harbor.backend": "HarborBackend",
    "osmosis.sdk.integrations.openai_agents": """
        OsmosisAgent OsmosisLitellmModel OsmosisMemorySession OsmosisRolloutModel""",
    "osmosis.sdk.integrations.strands": "OsmosisRolloutModel OsmosisStrandsAgent",
    "osmosis.sdk.judge": "RewardRubricRunResult",
    "osmosis.sdk.judge_model": """
        DEFAULT_REQUEST_TIMEOUT_SECONDS MissingAPIKeyError ModelInfo ModelNotFoundError ProviderRequestError
        ensure_api_key_available""",
    "osmosis.sdk.messages": """
        count_messages_by_role get_message_content get_message_role is_assistant_message is_tool_message
        is_user_message normalize_stop parse_tool_calls""",
    "osmosis.sdk.rewards": "osmosis_reward",
    "osmosis.sdk.rubrics": "osmosis_rubric",
    "osmosis.sdk.tools": """
        create_tool_error_result create_tool_result execute_tool_calls get_tool_call_info parse_tool_arguments
        serialize_tool_result""",
    "osmosis.sdk.types": "AgentWorkflowConfig ConcurrencyConfig GraderConfig RolloutSample",
    "osmosis.sdk.workflow": "AgentWorkflow AgentWorkflowOutput",
    "osmosis.serve.server.app": "create_rollout_server",
    "osmosis.serve.server.auth": "API_KEY_PREFIX generate_api_key validate_api_key",
    "osmosis.serve.server.console": "Console RICH_AVAILABLE console",
    "osmosis.serve.server.foreground": "DEFAULT_HOST DEFAULT_PORT ServeError serve_agent_loop validate_and_report",
    "osmosis.serve.server.lifetime": "AppState=ServerRuntime",
    "osmosis.serve.server.public_address": """
        PublicIPDetectionError detect_public_ip is_private_ip is_valid_hostname_or_ip validate_ipv4""",
    "osmosis.serve.server.registration": "RegistrationResult",
    "osmosis.serve.server.rollout_settings": """
        RolloutClientSettings RolloutServerSettings RolloutSettings configure get_settings reset_settings""",
    "osmosis.serve.server.trainer_client": "OsmosisLLMClient",
    "osmosis.serve.server.v02": "create_app",
    "osmosis.serve.server.validator": """
        AgentLoopValidationError ValidationError=ValidationIssue ValidationResult validate_agent_loop""",
    "osmosis.testing.mock_trainer": """
        RolloutCompletionTracker create_mock_trainer_app fake_prompt_token_ids fake_token_ids
        patch_httpx_for_mock_trainer""",
}
"""What existing projects know of each of our modules: its name, or `theirs=ours` where it has another one now."""

MODULES: dict[str, str] = {
    "osmosis_ai": """
        osmosis._version osmosis.classic.registry osmosis.records.loop_request osmosis.records.tool_schema
        osmosis.records.wire02 osmosis.sdk.agent_loop osmosis.sdk.backend
        osmosis.sdk.context evaluate_rubric=osmosis.sdk.evaluate_rubric:evaluate_rubric
        evaluate_rubric_async=osmosis.sdk.evaluate_rubric:evaluate_rubric_async osmosis.sdk.exceptions
        osmosis.sdk.grader osmosis.sdk.harbor.backend osmosis.llm.provider_variables osmosis.sdk.judge_model
        osmosis.sdk.rewards osmosis.sdk.rubrics osmosis.sdk.types osmosis.sdk.workflow osmosis.serve.server.app
        osmosis.serve.server.trainer_client osmosis.serve.server.v02""",
    "osmosis_ai.auth": "osmosis.classic.login",
    "osmosis_ai.auth.config": "osmosis.base.paths osmosis.client.settings",
    "osmosis_ai.auth.credentials": "osmosis.classic.login",
    "osmosis_ai.auth.flow": "osmosis.classic.login",
    "osmosis_ai.auth.local_server": "osmosis.classic.login",
    "osmosis_ai.auth.platform_client": "osmosis.classic.login",
    "osmosis_ai.cli_commands": "osmosis.cli.rubric",
    "osmosis_ai.cli_services": """
        osmosis.classic.rubric osmosis.engine.rubrics.conversations osmosis.engine.rubrics.rubric_files
        osmosis.engine.rubrics.rubric_report osmosis.engine.rubrics.rubric_run osmosis.errors""",
    "osmosis_ai.cli_services.config": "osmosis.engine.rubrics.rubric_files",
    "osmosis_ai.cli_services.dataset": "osmosis.engine.rubrics.conversations",
    "osmosis_ai.cli_services.engine": "osmosis.classic.rubric osmosis.engine.rubrics.rubric_run",
    "osmosis_ai.cli_services.errors": "osmosis.errors",
    "osmosis_ai.cli_services.reporting": "osmosis.engine.rubrics.rubric_report",
    "osmosis_ai.cli_services.session": "osmosis.engine.rubrics.rubric_run",
    "osmosis_ai.cli_services.shared": "osmosis.engine.rubrics.rubric_report",
    "osmosis_ai.consts": "osmosis._version",
    "osmosis_ai.eval": "",
    "osmosis_ai.eval.rubric": """
        osmosis.llm.provider_variables osmosis.sdk.judge osmosis.sdk.judge_model
        RubricResult=osmosis.sdk.evaluate_rubric:RubricResult
        evaluate_rubric=osmosis.sdk.evaluate_rubric:judge_solution""",
    "osmosis_ai.rollout": """
        osmosis.classic.registry osmosis.records.loop_request osmosis.records.tool_schema osmosis.records.wire02
        osmosis.sdk.agent_loop osmosis.sdk.backend
        osmosis.sdk.context osmosis.sdk.exceptions osmosis.sdk.grader osmosis.sdk.harbor.backend
        osmosis.sdk.messages osmosis.sdk.tools osmosis.sdk.types osmosis.sdk.workflow osmosis.serve.server.app
        osmosis.serve.server.foreground osmosis.serve.server.public_address osmosis.serve.server.rollout_settings
        osmosis.serve.server.trainer_client osmosis.serve.server.v02 osmosis.serve.server.validator""",
    "osmosis_ai.rollout._compat": "osmosis.serve.server.console",
    "osmosis_ai.rollout.agent_workflow": "osmosis.sdk.workflow",
    "osmosis_ai.rollout.backend": "osmosis.sdk.backend osmosis.sdk.harbor.backend",
    "osmosis_ai.rollout.backend.harbor": "osmosis.sdk.harbor.backend",
    "osmosis_ai.rollout.backend.local": "osmosis.sdk.backend",
    "osmosis_ai.rollout.cli": "osmosis.cli.agent_test.command osmosis.cli.serve osmosis.cli.validate",
    "osmosis_ai.rollout.cli_utils": "osmosis.engine.agent osmosis.errors",
    "osmosis_ai.rollout.client": "osmosis.sdk.agent_loop osmosis.serve.server.trainer_client",
    "osmosis_ai.rollout.config": "osmosis.serve.server.rollout_settings",
    "osmosis_ai.rollout.config.settings": "osmosis.serve.server.rollout_settings",
    "osmosis_ai.rollout.console": "osmosis.serve.server.console",
    "osmosis_ai.rollout.context": "osmosis.sdk.context RolloutContext=osmosis.sdk.context:WorkflowRollout",
    "osmosis_ai.rollout.core": """
        osmosis.records.loop_request osmosis.records.tool_schema osmosis.records.wire02 osmosis.sdk.agent_loop
        osmosis.sdk.exceptions""",
    "osmosis_ai.rollout.core.base": "osmosis.sdk.agent_loop",
    "osmosis_ai.rollout.core.exceptions": "osmosis.sdk.exceptions",
    "osmosis_ai.rollout.core.llm_client": "osmosis.sdk.agent_loop",
    "osmosis_ai.rollout.core.schemas": """
        osmosis.records.loop_request osmosis.records.tool_schema osmosis.records.wire02""",
    "osmosis_ai.rollout.eval": "",
    "osmosis_ai.rollout.eval.common": """
        osmosis.classic.dataset_reader osmosis.classic.errors osmosis.classic.llm_client osmosis.classic.runner""",
    "osmosis_ai.rollout.eval.common.cli": "osmosis.cli.agent_test.show",
    "osmosis_ai.rollout.eval.common.dataset": "osmosis.classic.dataset_reader osmosis.classic.errors",
    "osmosis_ai.rollout.eval.common.errors": "osmosis.classic.errors",
    "osmosis_ai.rollout.eval.common.llm_client": "osmosis.classic.llm_client",
    "osmosis_ai.rollout.eval.common.runner": "osmosis.classic.runner",
    "osmosis_ai.rollout.eval.evaluation": "osmosis.classic.errors osmosis.classic.evaluation",
    "osmosis_ai.rollout.eval.evaluation.cli": "osmosis.cli.local_eval.command",
    "osmosis_ai.rollout.eval.evaluation.eval_fn": "osmosis.classic.errors osmosis.classic.evaluation",
    "osmosis_ai.rollout.eval.evaluation.report": "osmosis.cli.agent_test.show",
    "osmosis_ai.rollout.eval.evaluation.runner": "osmosis.classic.evaluation",
    "osmosis_ai.rollout.eval.test_mode": "osmosis.classic.interactive osmosis.classic.runner",
    "osmosis_ai.rollout.eval.test_mode.cli": "osmosis.cli.agent_test.command osmosis.cli.agent_test.show",
    "osmosis_ai.rollout.eval.test_mode.interactive": "osmosis.classic.interactive",
    "osmosis_ai.rollout.eval.test_mode.runner": "osmosis.classic.runner",
    "osmosis_ai.rollout.grader": "osmosis.sdk.grader",
    "osmosis_ai.rollout.integrations": "",
    "osmosis_ai.rollout.integrations.agents": "",
    "osmosis_ai.rollout.integrations.agents.openai_agents": "osmosis.sdk.integrations.openai_agents",
    "osmosis_ai.rollout.integrations.agents.strands": "osmosis.sdk.integrations.strands",
    "osmosis_ai.rollout.network": "osmosis.serve.server.public_address",
    "osmosis_ai.rollout.registry": "osmosis.classic.registry",
    "osmosis_ai.rollout.server": """
        osmosis.serve.server.app osmosis.serve.server.auth osmosis.serve.server.foreground
        osmosis.serve.server.lifetime osmosis.serve.server.v02""",
    "osmosis_ai.rollout.server.api_key": "osmosis.serve.server.auth",
    "osmosis_ai.rollout.server.app": "osmosis.serve.server.v02",
    "osmosis_ai.rollout.server.registration": "osmosis.serve.server.registration",
    "osmosis_ai.rollout.server.serve": "osmosis.serve.server.foreground",
    "osmosis_ai.rollout.server.state": "osmosis.serve.server.lifetime",
    "osmosis_ai.rollout.testing": "osmosis.testing.mock_trainer",
    "osmosis_ai.rollout.tools": "osmosis.sdk.tools",
    "osmosis_ai.rollout.types": "osmosis.sdk.types",
    "osmosis_ai.rollout.utils": "osmosis.sdk.messages",
    "osmosis_ai.rollout.validator": "osmosis.serve.server.validator",
    "osmosis_ai.rubric_eval": """
        osmosis.llm.provider_variables osmosis.sdk.evaluate_rubric osmosis.sdk.judge osmosis.sdk.judge_model""",
    "osmosis_ai.rubric_types": """
        osmosis.llm.provider_variables osmosis.sdk.judge osmosis.sdk.judge_model
        RubricResult=osmosis.sdk.evaluate_rubric:RubricResult""",
    "osmosis_ai.utils": "osmosis.sdk.rewards osmosis.sdk.rubrics",
}
"""The modules that existing projects import, each with the modules of ours whose `HOMES` it offers.

`name=module:attribute` overrides: one word means another thing in generation 0.2 than in 0.3.
"""


def names_of(module: str) -> dict[str, str]:
    """What a module of `osmosis_ai` offers: each name with its home, `module:attribute`."""
    found: dict[str, str] = {}
    for source in MODULES[module].split():
        name, overrides, home = source.partition("=")
        if overrides:
            found[name] = home
            continue
        for word in HOMES[source].split():
            theirs, _, ours = word.partition("=")
            found[theirs] = f"{source}:{ours or theirs}"
    return found


def is_package(module: str) -> bool:
    """Whether other modules are inside it."""
    return any(other.startswith(f"{module}.") for other in MODULES)
