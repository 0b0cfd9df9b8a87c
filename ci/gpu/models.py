"""The models of the runs: tiny ones, one for each mix of pools, and a wide one for the clock."""

from dataclasses import dataclass, field, replace
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "models"

ENGINE = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "enable_hierarchical_cache": True,
    "hicache_mem_layout": "page_first",
    "hicache_io_backend": "kernel",
    "hicache_write_policy": "write_through",
    "hicache_storage_prefetch_policy": "wait_complete",
    "hicache_ratio": 2.0,
    "page_size": 64,
    "max_total_tokens": 32768,
    "max_running_requests": 8,
    "chunked_prefill_size": 4096,
    # Not the pools' size, which max_total_tokens sets: room for engines side by side.
    "mem_fraction_static": 0.9,
    "random_seed": 42,
    "log_level": "info",
}
MOE = {"moe_runner_backend": "triton"}
MAMBA = {"max_mamba_cache_size": 64}


@dataclass(frozen=True)
class Model:
    """One model: what SGLang needs to run it, and what should come back from disk.

    noisy: two identical device hits already differ, so equality means "within that spread".
    """

    name: str
    kind: str
    pools: tuple[str, ...]
    engine: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)
    noisy: bool = False
    config: str = ""

    def arguments(self, **more) -> dict:
        folder = FOLDER / (self.config or self.name)
        return {**ENGINE, "model_path": str(folder), **self.engine, **more}


MODELS = {
    model.name: model
    for model in (
        Model("swa", "GPT-OSS-like", ("kv", "swa"), MOE),
        Model("gdn", "Qwen3-Next-like", ("kv", "mamba"), {**MOE, **MAMBA}),
        Model("mamba2", "Falcon-H1-like", ("kv", "mamba"), MAMBA),
        Model(
            "dsa",
            "DeepSeek-V3.2-like",
            ("kv", "indexer"),
            {
                "attention_backend": "dsa",
                "dsa_prefill_backend": "flashmla_sparse",
                "dsa_decode_backend": "flashmla_sparse",
                "kv_cache_dtype": "bfloat16",
            },
            # Short prompts would need FlashAttention 3, which the package leaves out.
            {"SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0"},
            noisy=True,
        ),
        Model(
            "dsv4",
            "DeepSeek-V4-like",
            (
                "swa",
                "deepseek_v4_c4",
                "deepseek_v4_c4_indexer",
                "deepseek_v4_c128",
                "deepseek_v4_c4_state",
                "deepseek_v4_c4_indexer_state",
            ),
            {
                **MOE,
                "attention_backend": "dsv4",
                "kv_cache_dtype": "auto",
                "page_size": 256,
            },
            {
                "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
                "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
                "SGLANG_OPT_DEEPGEMM_HC_PRENORM": "0",
            },
            noisy=True,
        ),
        Model("wide", "GPT-OSS-20B-like", ("kv", "swa"), MOE),
    )
}
TINY = [name for name in MODELS if name != "wide"]
# Where the noise of the two sparse-attention models comes from: their top-k kernels return
# the chosen positions in any order, so sums round differently. With PyTorch's they repeat.
EXACT = {
    "dsa": (
        {"dsa_topk_backend": "torch"},
        {"SGLANG_DSA_FUSE_TOPK": "0"},
    ),
    "dsv4": ({}, {"SGLANG_TOPK_TRANSFORM_512_TORCH": "1"}),
}
for _name, (_engine, _environment) in EXACT.items():
    _noisy = MODELS[_name]
    MODELS[f"{_name}-exact"] = replace(
        _noisy,
        name=f"{_name}-exact",
        engine={**_noisy.engine, **_engine},
        environment={**_noisy.environment, **_environment},
        noisy=False,
        config=_name,
    )
