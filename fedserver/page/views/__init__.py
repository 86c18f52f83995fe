"""What the browser draws, made of the server's answers: pure functions to plain JSON values.

Texts that devices or operators wrote are cut and escaped here (`texts`), and the browser sets them as text
only. Numbers that are unknown are null.
"""
