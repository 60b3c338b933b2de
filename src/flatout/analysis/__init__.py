"""What a Capture's events mean: pure functions from its columns to figures. No loop over events."""
