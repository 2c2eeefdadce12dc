"""Generation 0.2 of the SDK and of the remote-rollout protocol, for existing code: the server of an agent loop, its
client and registration, and local runs as classes. Only entry points load it; new code uses `osmosis.evaluate` and
`create_rollout_server`."""
