"""Stands in for xgrammar: SGLang imports names from it; the runs use no grammar backend."""

from pydantic import BaseModel


class StructuralTag(BaseModel):
    """SGLang uses it as the type of a field."""


class _Absent:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("xgrammar is not in the package")


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent
