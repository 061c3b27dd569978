"""Measuring encoders: features once (`features`), k-NN (`knn`), all of it into the card (`score`)."""
