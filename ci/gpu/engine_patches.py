"""Two changes to SGLang in the processes of a run. Nothing of SGLang is kept in this repository.

Weights: SGLang's dummy weights are so small that a cache hardly changes the output. Here each
parameter is drawn from its name, alike in every run, and large enough to matter.
DeepSeek V4: where TileLang is not installed, its Sinkhorn kernel is done in plain PyTorch.
"""

import importlib.util
import zlib

import torch


def install() -> None:
    from sglang.srt.model_loader import loader, weight_utils

    for module in (loader, weight_utils):
        if hasattr(module, "initialize_dummy_weights"):
            module.initialize_dummy_weights = lively_weights
    if importlib.util.find_spec("tilelang") is None:
        try:
            from sglang.kernels.ops.layernorm import mhc
        except ImportError:  # before SGLang 0.5.16
            from sglang.srt.layers import mhc
        mhc.hc_split_sinkhorn = sinkhorn


def lively_weights(model: torch.nn.Module, *args, **kwargs) -> None:
    for name, parameter in model.state_dict().items():
        if torch.is_floating_point(parameter):
            low, high = spread(name, parameter)
            generator = torch.Generator(device=parameter.device)
            generator.manual_seed(zlib.crc32(name.encode()))
            if parameter.element_size() > 1:
                parameter.data.uniform_(low, high, generator=generator)
            else:  # fp8 has no uniform_
                wide = torch.empty_like(parameter.data, dtype=torch.float16)
                parameter.data.copy_(wide.uniform_(low, high, generator=generator))


def spread(name: str, parameter: torch.Tensor) -> tuple[float, float]:
    """The range to draw from: signals neither die nor saturate over the layers."""
    if parameter.dim() == 1 and "norm" in name and name.endswith("weight"):
        return 0.9, 1.1
    if name.endswith(".A"):  # decay of a state space: -exp(A_log)
        return -1.5, -0.5
    width = max(1, parameter.shape[-1] if parameter.dim() else 1)
    scale = min(0.08, (3 / width) ** 0.5)
    return -scale, scale


def sinkhorn(mixes, hc_scale, hc_base, hc_mult=4, sinkhorn_iters=20, eps=1e-6):
    """mixes [batch, tokens, (2 + h) * h] -> gates before and after [.., h], mixing [.., h, h]."""
    parts = [hc_mult, hc_mult, hc_mult * hc_mult]
    before, after, mixing = mixes.float().split(parts, dim=-1)
    bias = hc_base.float().split(parts)
    before = torch.sigmoid(before * hc_scale[0] + bias[0]) + eps
    after = 2 * torch.sigmoid(after * hc_scale[1] + bias[1])
    mixing = (mixing * hc_scale[2] + bias[2]).unflatten(-1, (hc_mult, hc_mult))
    mixing = mixing.softmax(dim=-1) + eps
    mixing = mixing / (mixing.sum(dim=-2, keepdim=True) + eps)
    for _ in range(sinkhorn_iters - 1):
        for dim in (-1, -2):
            mixing = mixing / (mixing.sum(dim=dim, keepdim=True) + eps)
    return before, after, mixing
