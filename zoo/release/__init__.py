"""What leaves this machine: published, bundled, verified models."""
