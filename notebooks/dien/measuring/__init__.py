"""How good DIEN is on held-out interactions (`quality`), and how fast (`bench`)."""
