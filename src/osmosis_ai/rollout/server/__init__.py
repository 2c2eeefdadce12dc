"""Rollout servers of both generations."""

from osmosis_ai._lazy import lazily

_HOMES = {
    "AppState": "osmosis.serve.server.lifetime:ServerRuntime",
    "DEFAULT_HOST": "osmosis.serve.server.foreground:DEFAULT_HOST",
    "DEFAULT_PORT": "osmosis.serve.server.foreground:DEFAULT_PORT",
    "ServeError": "osmosis.serve.server.foreground:ServeError",
    "create_app": "osmosis.serve.server.v02:create_app",
    "create_rollout_server": "osmosis.serve.server.app:create_rollout_server",
    "generate_api_key": "osmosis.serve.server.auth:generate_api_key",
    "serve_agent_loop": "osmosis.serve.server.foreground:serve_agent_loop",
    "validate_and_report": "osmosis.serve.server.foreground:validate_and_report",
    "validate_api_key": "osmosis.serve.server.auth:validate_api_key",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = lazily(__name__, _HOMES)
