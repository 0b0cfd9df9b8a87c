"""Stands in for IPython, which SGLang imports for its notebook helpers."""
