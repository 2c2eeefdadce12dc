"""The remote-rollout protocol, generations 0.2, 0.3 (callbacks) and 0.4 (polling), spoken on both sides: `server/` runs
rollouts for someone else, `drive/` calls such a server and makes each served rollout one `RolloutFn`. Nothing here
stores a score or decides what one means.
"""
