"""Where weights come from: the package, the local store, the Hugging Face Hub, checkpoints of others."""
