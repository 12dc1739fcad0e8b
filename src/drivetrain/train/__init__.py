"""What a user programs against: run, trainer, task, models."""
