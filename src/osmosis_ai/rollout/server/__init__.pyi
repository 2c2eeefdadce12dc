from osmosis.serve.server.app import (
    create_rollout_server as create_rollout_server,
)
from osmosis.serve.server.auth import (
    generate_api_key as generate_api_key,
)
from osmosis.serve.server.auth import (
    validate_api_key as validate_api_key,
)
from osmosis.serve.server.foreground import (
    DEFAULT_HOST as DEFAULT_HOST,
)
from osmosis.serve.server.foreground import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from osmosis.serve.server.foreground import (
    ServeError as ServeError,
)
from osmosis.serve.server.foreground import (
    serve_agent_loop as serve_agent_loop,
)
from osmosis.serve.server.foreground import (
    validate_and_report as validate_and_report,
)
from osmosis.serve.server.v02 import (
    create_app as create_app,
)
