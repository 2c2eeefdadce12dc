"""Where jobs run. An executor starts a job as a process, says whether it lives, and ends it."""
