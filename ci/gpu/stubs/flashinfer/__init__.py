"""Stands in for FlashInfer, which the runs turn off (SGLANG_IS_FLASHINFER_AVAILABLE=0)."""


def bmm_fp8(*args, **kwargs):
    raise RuntimeError("flashinfer's bmm_fp8 is not in the package")
