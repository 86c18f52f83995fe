"""The work of a device: the training process, the author's learner, the data, and what may leave of
errors.
"""
