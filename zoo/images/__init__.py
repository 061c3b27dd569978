"""One set of images, whatever it is kept in, and how a picture becomes pixels."""
