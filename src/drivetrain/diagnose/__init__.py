"""Why it failed: verdicts from the logs of any launcher, scheduler and kernel. Rules are data (`rules/`)."""
