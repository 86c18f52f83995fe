"""The tables of the papers, each as its experiments and what the paper printed."""
