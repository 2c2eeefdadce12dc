from osmosis.serve.auth import (
    generate_api_key as generate_api_key,
)
from osmosis.serve.auth import (
    validate_api_key as validate_api_key,
)
from osmosis.serve.server import (
    create_rollout_server as create_rollout_server,
)
from osmosis.serve.server02 import (
    create_app as create_app,
)
from osmosis.serve.serving import (
    DEFAULT_HOST as DEFAULT_HOST,
)
from osmosis.serve.serving import (
    DEFAULT_PORT as DEFAULT_PORT,
)
from osmosis.serve.serving import (
    ServeError as ServeError,
)
from osmosis.serve.serving import (
    serve_agent_loop as serve_agent_loop,
)
from osmosis.serve.serving import (
    validate_and_report as validate_and_report,
)
