"""What the platform does, as plain functions over a session: rules and decisions, no HTTP and no processes."""
