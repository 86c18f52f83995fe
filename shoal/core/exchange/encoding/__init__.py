"""Tensors in fewer bytes: the numbers themselves (`quantizer`), and what devices have trained (`updates`)."""
