"""Models that ship with drivetrain, and a way to others by name."""
