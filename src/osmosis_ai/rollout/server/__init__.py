"""Rollout servers of both generations."""

from osmosis_ai._lazy import lazily

_HOMES = {
    "AppState": "osmosis.serve.runtime:ServerRuntime",
    "DEFAULT_HOST": "osmosis.serve.serving:DEFAULT_HOST",
    "DEFAULT_PORT": "osmosis.serve.serving:DEFAULT_PORT",
    "ServeError": "osmosis.serve.serving:ServeError",
    "create_app": "osmosis.serve.server02:create_app",
    "create_rollout_server": "osmosis.serve.server:create_rollout_server",
    "generate_api_key": "osmosis.serve.auth:generate_api_key",
    "serve_agent_loop": "osmosis.serve.serving:serve_agent_loop",
    "validate_and_report": "osmosis.serve.serving:validate_and_report",
    "validate_api_key": "osmosis.serve.auth:validate_api_key",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazily(__name__, _HOMES)
