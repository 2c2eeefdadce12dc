"""The remote-rollout protocol, generations 0.3 (callbacks) and 0.4 (polling): `server/` runs rollouts for a client,
`client/` calls such a server and makes it the engine's agent. Generation 0.2 is in `osmosis.compat`."""
