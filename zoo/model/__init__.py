"""The encoder, the backbones it is made of, and its card."""
