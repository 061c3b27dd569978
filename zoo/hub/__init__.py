"""Where weights come from: the package, the local store, the Hugging Face Hub, files that authors publish."""
