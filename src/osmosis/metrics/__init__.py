"""Pure computation over records: reports and comparisons of rollouts. Reads and writes nothing."""
