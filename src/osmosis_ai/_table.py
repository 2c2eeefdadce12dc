"""The one table of `osmosis_ai`: which module of generations 0.2 and 0.3 offers the names of which of ours.

A plain table, so that a name that moves is changed in one place. Imports nothing; the stubs for type checkers are
written from it when the package is built."""

HOMES: dict[str, str] = {
    "osmosis._version": "PACKAGE_VERSION=__version__ __version__ package_name=DISTRIBUTION",
    "osmosis.base.paths": "DEFAULT_PLATFORM_URL",
    "osmosis.compat.login": """
        AuthenticationExpiredError LoginError LoginResult PlatformAPIError WorkspaceCredentials get_all_workspaces
        get_valid_credentials login platform_request""",
    "osmosis.compat.dataset_reader": "DatasetReader DatasetRow REQUIRED_COLUMNS dataset_row_to_request",
    "osmosis.compat.dataset_reader#errors": """
        DatasetParseError DatasetValidationError EvalFnError LocalExecutionError ProviderError ToolValidationError""",
    "osmosis.compat.evaluation": """
        EvalEvalSummary EvalFnWrapper EvalResult EvalRowResult EvalRunResult EvalRunner load_eval_fn load_eval_fns
        pass_at_k""",
    "osmosis.compat.interactive": "InteractiveLLMClient InteractiveRunner InteractiveStep",
    "osmosis.compat.llm_clients#local": "ExternalLLMClient",
    "osmosis.compat.validator#registry": """
        AgentLoopRegistry get_agent_loop list_agent_loops register_agent_loop unregister_agent_loop""",
    "osmosis.compat.evaluation#rubric": "RubricEvaluator",
    "osmosis.compat.runner": """
        LocalBatchResult LocalRolloutRunner LocalRunResult LocalTestBatchResult=LocalBatchResult
        LocalTestRunResult=LocalRunResult LocalTestRunner validate_tools""",
    "osmosis.cli.agent_test": "test",
    "osmosis.cli.core.results": "format_duration format_tokens",
    "osmosis.cli.eval.run": "local_eval=run",
    "osmosis.cli.eval.rubric": "eval_rubric preview",
    "osmosis.cli.serve": "serve",
    "osmosis.cli.check": "validate=check",
    "osmosis.client.settings": "platform_url",
    "osmosis.engine.load_agent": "load_agent",
    "osmosis.engine.rubrics.conversations": "RubricRecord load_rubric_records",
    "osmosis.engine.rubrics.rubric_files": "ParsedItem RubricConfig RubricSuite load_rubric_configs load_rubric_suite",
    "osmosis.engine.rubrics.rubric_report": "Baseline STATISTICS build_report summarise",
    "osmosis.engine.rubrics.rubric_run": "RubricJob RubricRun run_rubric",
    "osmosis.errors": "CLIError=OsmosisError",
    "osmosis.records.protocol.messages": """
        CancelRolloutsRequest=CancelRequest CancelRolloutsResponse=CancelReply POLLING_LEASE_HEADER=LEASE_HEADER
        RolloutErrorCategory RolloutInitRequest=RolloutInit RolloutInitResponse=RolloutAccepted
        RolloutLifecycle=ServerLifecycle RolloutResultResponse=RolloutState04""",
    "osmosis.records.protocol.v02": """
        CompletionUsage CompletionsChoice CompletionsRequest CompletionsResponse InitResponse RolloutResponse
        DEFAULT_MAX_METADATA_SIZE_BYTES MessageDict RolloutMetrics RolloutRequest RolloutStatus=LoopStatus
        SamplingParamsDict get_max_metadata_size_bytes set_max_metadata_size_bytes""",
    "osmosis.records.protocol.v02#tools": """
        OpenAIFunctionCallSchema OpenAIFunctionParametersSchema OpenAIFunctionParsedSchema
        OpenAIFunctionPropertySchema OpenAIFunctionSchema OpenAIFunctionToolCall OpenAIFunctionToolSchema
        ToolResponse""",
    "osmosis.llm.providers": "DEFAULT_API_KEY_ENV",
    "osmosis.sdk.agent_loop": "CompletionsResult LLMClientProtocol RolloutAgentLoop RolloutContext RolloutResult",
    "osmosis.sdk.backend": """
        ExecutionOutcome=ExecutionResult ExecutionRequest=WorkflowTask ExecutionResult LocalBackend""",
    "osmosis.sdk.context": "AgentWorkflowContext GraderContext SampleSource get_rollout_context",
    "osmosis.sdk.evaluate_rubric": "RubricResult evaluate_rubric evaluate_rubric_async",
    "osmosis.sdk.exceptions": """
        AgentLoopNotFoundError OsmosisRolloutError OsmosisServerError OsmosisTimeoutError OsmosisTransportError
        OsmosisValidationError ToolArgumentError ToolExecutionError""",
    "osmosis.sdk.workflow#grader": "Grader",
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
    "osmosis.sdk.types": "AgentWorkflowConfig BaseConfig ConcurrencyConfig GraderConfig RolloutSample",
    "osmosis.sdk.workflow": "AgentWorkflow AgentWorkflowOutput",
    "osmosis.serve.server.app": "create_rollout_server",
    "osmosis.serve.http": "API_KEY_PREFIX generate_api_key validate_api_key",
    "osmosis.compat.console": "Console RICH_AVAILABLE console",
    "osmosis.serve.server.rollouts": "ExecutionBackend=Backend",
    "osmosis.serve.server.run": "DEFAULT_HOST DEFAULT_PORT ServeError",
    "osmosis.compat.run": "serve_agent_loop validate_and_report",
    "osmosis.serve.server.runtime": "AppState=ServerRuntime",
    "osmosis.compat.registration": "RegistrationResult",
    "osmosis.compat.registration#address": """
        PublicIPDetectionError detect_public_ip is_private_ip is_valid_hostname_or_ip validate_ipv4""",
    "osmosis.compat.settings": """
        RolloutClientSettings RolloutServerSettings RolloutSettings configure get_settings reset_settings""",
    "osmosis.compat.llm_clients": "OsmosisLLMClient",
    "osmosis.compat.server": "create_app",
    "osmosis.compat.validator": """
        AgentLoopValidationError ValidationError=ValidationIssue ValidationResult validate_agent_loop""",
    "osmosis.testing.mock_trainer": """
        RolloutCompletionTracker create_mock_trainer_app fake_prompt_token_ids fake_token_ids
        patch_httpx_for_mock_trainer""",
}
"""What existing projects know of each of our modules: its name, or `theirs=ours` where it has another one now.

A module whose names they know from several of theirs has a group of names after a `#` for each.
"""

MODULES: dict[str, str] = {
    "osmosis_ai": """
        RubricResult=osmosis.sdk.evaluate_rubric:RubricResult
        osmosis._version osmosis.compat.validator#registry
        osmosis.records.protocol.v02 osmosis.records.protocol.v02#tools
        osmosis.sdk.agent_loop osmosis.sdk.backend osmosis.sdk.context
        evaluate_rubric=osmosis.sdk.evaluate_rubric:evaluate_rubric
        evaluate_rubric_async=osmosis.sdk.evaluate_rubric:evaluate_rubric_async osmosis.sdk.exceptions
        osmosis.sdk.workflow#grader osmosis.sdk.harbor.backend osmosis.llm.providers osmosis.sdk.judge_model
        osmosis.sdk.rewards osmosis.sdk.rubrics osmosis.sdk.types osmosis.sdk.workflow osmosis.serve.server.app
        osmosis.compat.llm_clients osmosis.compat.server""",
    "osmosis_ai.auth": "osmosis.compat.login",
    "osmosis_ai.auth.config": "osmosis.base.paths osmosis.client.settings",
    "osmosis_ai.auth.credentials": "osmosis.compat.login",
    "osmosis_ai.auth.flow": "osmosis.compat.login",
    "osmosis_ai.auth.local_server": "osmosis.compat.login",
    "osmosis_ai.auth.platform_client": "osmosis.compat.login",
    "osmosis_ai.cli_commands": "osmosis.cli.eval.rubric",
    "osmosis_ai.cli_services": """
        osmosis.compat.evaluation#rubric osmosis.engine.rubrics.conversations osmosis.engine.rubrics.rubric_files
        osmosis.engine.rubrics.rubric_report osmosis.engine.rubrics.rubric_run osmosis.errors""",
    "osmosis_ai.cli_services.config": "osmosis.engine.rubrics.rubric_files",
    "osmosis_ai.cli_services.dataset": "osmosis.engine.rubrics.conversations",
    "osmosis_ai.cli_services.engine": "osmosis.compat.evaluation#rubric osmosis.engine.rubrics.rubric_run",
    "osmosis_ai.cli_services.errors": "osmosis.errors",
    "osmosis_ai.cli_services.reporting": "osmosis.engine.rubrics.rubric_report",
    "osmosis_ai.cli_services.session": "osmosis.engine.rubrics.rubric_run",
    "osmosis_ai.cli_services.shared": "osmosis.engine.rubrics.rubric_report",
    "osmosis_ai.consts": "osmosis._version",
    "osmosis_ai.eval": "",
    "osmosis_ai.eval.rubric": """
        osmosis.llm.providers osmosis.sdk.judge osmosis.sdk.judge_model
        RubricResult=osmosis.sdk.evaluate_rubric:RubricResult
        evaluate_rubric=osmosis.sdk.evaluate_rubric:judge_solution""",
    "osmosis_ai.rollout": """
        osmosis.records.protocol.messages osmosis.serve.server.rollouts
        osmosis.compat.validator#registry osmosis.records.protocol.v02 osmosis.records.protocol.v02#tools
        osmosis.sdk.agent_loop osmosis.sdk.backend
        osmosis.sdk.context osmosis.sdk.exceptions osmosis.sdk.workflow#grader osmosis.sdk.harbor.backend
        osmosis.sdk.messages osmosis.sdk.tools osmosis.sdk.types osmosis.sdk.workflow osmosis.serve.server.app
        osmosis.serve.server.run osmosis.compat.run osmosis.compat.registration#address osmosis.compat.settings
        osmosis.compat.llm_clients osmosis.compat.server osmosis.compat.validator""",
    "osmosis_ai.rollout._compat": "osmosis.compat.console",
    "osmosis_ai.rollout.agent_workflow": "osmosis.sdk.context osmosis.sdk.types osmosis.sdk.workflow",
    "osmosis_ai.rollout.backend": "osmosis.sdk.backend osmosis.sdk.harbor.backend osmosis.serve.server.rollouts",
    "osmosis_ai.rollout.backend.harbor": "osmosis.sdk.harbor.backend",
    "osmosis_ai.rollout.backend.local": "osmosis.sdk.backend",
    "osmosis_ai.rollout.cli": "osmosis.cli.agent_test osmosis.cli.serve osmosis.cli.check",
    "osmosis_ai.rollout.cli_utils": "osmosis.engine.load_agent osmosis.errors",
    "osmosis_ai.rollout.client": "osmosis.sdk.agent_loop osmosis.compat.llm_clients",
    "osmosis_ai.rollout.config": "osmosis.compat.settings",
    "osmosis_ai.rollout.config.settings": "osmosis.compat.settings",
    "osmosis_ai.rollout.console": "osmosis.compat.console",
    "osmosis_ai.rollout.context": """
        osmosis.sdk.context osmosis.sdk.types RolloutContext=osmosis.sdk.context:WorkflowRollout
        RolloutStatus=osmosis.records.protocol.messages:RolloutStatus""",
    "osmosis_ai.rollout.core": """
        osmosis.records.protocol.v02 osmosis.records.protocol.v02#tools osmosis.sdk.agent_loop
        osmosis.sdk.exceptions""",
    "osmosis_ai.rollout.core.base": "osmosis.sdk.agent_loop",
    "osmosis_ai.rollout.core.exceptions": "osmosis.sdk.exceptions",
    "osmosis_ai.rollout.core.llm_client": "osmosis.sdk.agent_loop",
    "osmosis_ai.rollout.core.schemas": """
        osmosis.records.protocol.v02 osmosis.records.protocol.v02#tools""",
    "osmosis_ai.rollout.eval": "",
    "osmosis_ai.rollout.eval.common": """
        osmosis.compat.dataset_reader osmosis.compat.dataset_reader#errors osmosis.compat.llm_clients#local
        osmosis.compat.runner""",
    "osmosis_ai.rollout.eval.common.cli": "osmosis.cli.core.results",
    "osmosis_ai.rollout.eval.common.dataset": "osmosis.compat.dataset_reader osmosis.compat.dataset_reader#errors",
    "osmosis_ai.rollout.eval.common.errors": "osmosis.compat.dataset_reader#errors",
    "osmosis_ai.rollout.eval.common.llm_client": "osmosis.compat.llm_clients#local",
    "osmosis_ai.rollout.eval.common.runner": "osmosis.compat.runner",
    "osmosis_ai.rollout.eval.evaluation": "osmosis.compat.dataset_reader#errors osmosis.compat.evaluation",
    "osmosis_ai.rollout.eval.evaluation.cli": "osmosis.cli.eval.run",
    "osmosis_ai.rollout.eval.evaluation.eval_fn": "osmosis.compat.dataset_reader#errors osmosis.compat.evaluation",
    "osmosis_ai.rollout.eval.evaluation.report": "osmosis.cli.core.results",
    "osmosis_ai.rollout.eval.evaluation.runner": "osmosis.compat.evaluation",
    "osmosis_ai.rollout.eval.test_mode": "osmosis.compat.interactive osmosis.compat.runner",
    "osmosis_ai.rollout.eval.test_mode.cli": "osmosis.cli.agent_test osmosis.cli.core.results",
    "osmosis_ai.rollout.eval.test_mode.interactive": "osmosis.compat.interactive",
    "osmosis_ai.rollout.eval.test_mode.runner": "osmosis.compat.runner",
    "osmosis_ai.rollout.grader": "osmosis.sdk.context osmosis.sdk.workflow#grader osmosis.sdk.types",
    "osmosis_ai.rollout.integrations": "",
    "osmosis_ai.rollout.integrations.agents": "",
    "osmosis_ai.rollout.integrations.agents.openai_agents": "osmosis.sdk.integrations.openai_agents",
    "osmosis_ai.rollout.integrations.agents.strands": "osmosis.sdk.integrations.strands",
    "osmosis_ai.rollout.network": "osmosis.compat.registration#address",
    "osmosis_ai.rollout.registry": """
        osmosis.compat.validator#registry AgentLoopNotFoundError=osmosis.sdk.exceptions:AgentLoopNotFoundError""",
    "osmosis_ai.rollout.server": """
        osmosis.serve.server.app osmosis.serve.http osmosis.serve.server.run osmosis.compat.run
        osmosis.serve.server.runtime osmosis.compat.server""",
    "osmosis_ai.rollout.server.api_key": "osmosis.serve.http",
    "osmosis_ai.rollout.server.app": "osmosis.compat.server osmosis.records.protocol.messages osmosis.serve.server.app",
    "osmosis_ai.rollout.server.registration": "osmosis.compat.registration",
    "osmosis_ai.rollout.server.serve": "osmosis.serve.server.run osmosis.compat.run",
    "osmosis_ai.rollout.server.state": "osmosis.serve.server.runtime",
    "osmosis_ai.rollout.testing": "osmosis.testing.mock_trainer",
    "osmosis_ai.rollout.tools": "osmosis.sdk.tools",
    "osmosis_ai.rollout.types": """
        osmosis.records.protocol.messages osmosis.sdk.backend osmosis.sdk.types osmosis.sdk.workflow
        MessageDict=osmosis.records.run.rollout:Message Messages=osmosis.records.run.rollout:Messages
        RolloutStatus=osmosis.records.protocol.messages:RolloutStatus""",
    "osmosis_ai.rollout.utils": "osmosis.sdk.messages",
    "osmosis_ai.rollout.validator": "osmosis.compat.validator",
    "osmosis_ai.rubric_eval": """
        osmosis.llm.providers osmosis.sdk.evaluate_rubric osmosis.sdk.judge osmosis.sdk.judge_model""",
    "osmosis_ai.rubric_types": """
        osmosis.llm.providers osmosis.sdk.judge osmosis.sdk.judge_model
        RubricResult=osmosis.sdk.evaluate_rubric:RubricResult""",
    "osmosis_ai.utils": "osmosis.sdk.rewards osmosis.sdk.rubrics",
}
"""The modules that existing projects import, each with the modules of ours whose `HOMES` it offers.

`name=module:attribute` overrides: one word means another thing in generation 0.2 than in 0.3.
"""


def names_of(module: str) -> dict[str, str]:
    """Return what a module of `osmosis_ai` offers: each name with its home, `module:attribute`."""
    homes: dict[str, str] = {}
    for source in MODULES[module].split():
        name, overrides, home = source.partition("=")
        if overrides:
            homes[name] = home
            continue
        for word in HOMES[source].split():
            theirs, _, ours = word.partition("=")
            homes[theirs] = f"{source.partition('#')[0]}:{ours or theirs}"
    return homes


def is_package(module: str) -> bool:
    """Return whether other modules are inside it."""
    return any(other.startswith(f"{module}.") for other in MODULES)
