"""Forward passes of models that behave differently in training: batch norm, dropout, random draws.

Torch's layers draw from one global generator, write running statistics in place, and average over
all rows of a batch, padding included. None of this fits clients that run in any order, in threads
and at once. `ForwardPass` replaces the functions concerned while a model runs:

* batch norm normalises by the statistics of real rows only, and its new running statistics are
  returned instead of written;
* dropout, `torch.rand` and their like hash (key, number of the draw, position), so every engine
  draws the same numbers, and so does a resumed run;
* attention is written out, because torch's kernels draw by themselves and have no `vmap` rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coterie.core.errors import CoterieError
from coterie.core.params import Params
from coterie.core.randomness import scramble, uniform

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


# ------------------------------------------------------------------------------ random numbers
class Draws:
    """Random numbers from a key, draw by draw. The same key gives the same numbers.

    Args:
        key: int64 [].
        like: A tensor with the dtype and device of the numbers.

    Example:
        >>> import torch, coterie as ct
        >>> draws = ct.Draws(torch.tensor(7), like=torch.zeros(()))
        >>> draws.rand(2, 3).shape, bool((draws.rand(1000).mean() - 0.5).abs() < 0.05)
        (torch.Size([2, 3]), True)
    """

    def __init__(self, key: Tensor, like: Tensor) -> None:
        self.key = key
        self.like = like
        self.shapes: list[torch.Size] = []  # of all draws so far

    def rand(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1)."""
        numbers = self._uniform(torch.Size(shape)).to(self.like.dtype)
        return numbers.clamp(max=1 - torch.finfo(self.like.dtype).eps / 2)

    def randn(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        size = torch.Size(shape)
        radius = (-2 * (1 - self._uniform(size)).log()).sqrt()  # Box and Muller
        return (radius * (2 * math.pi * self._uniform(size)).cos()).to(self.like.dtype)

    def randint(self, high: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to high − 1, int64."""
        return (self._uniform(torch.Size(shape)) * high).long()

    def keep(self, p: float, shape: torch.Size) -> Tensor:
        """bool, False with probability p."""
        return self._uniform(shape) >= p

    def _uniform(self, shape: torch.Size) -> Tensor:
        """float64 numbers in [0, 1). A row's numbers do not depend on the number of rows."""
        self.shapes.append(shape)
        places = torch.arange(shape.numel(), device=self.key.device)
        return uniform(scramble(self.key + len(self.shapes)) + places).view(shape)


# ------------------------------------------------------------------------------ one pass
class ForwardPass(TorchFunctionMode):
    """One run of a model, with torch's batch norm, attention and random functions replaced.

    Args:
        running: Running statistics by name, as the model receives them.
        mask: [n], 1 for real rows; None: all rows are real.
        draws: Random numbers; None in evaluation, where nothing is drawn.
    """

    def __init__(
        self, running: Params | None = None, mask: Tensor | None = None, draws: Draws | None = None
    ) -> None:
        super().__init__()
        self.names = {id(value): name for name, value in (running or {}).items()}
        self.mask = mask
        self.draws = draws
        self.statistics: Params = {}  # the new running statistics
        self.values_per_row: list[int] = []  # of each batch norm, per channel
        self.replaced = 0  # how many calls were replaced
        self.replacements: dict[Any, Callable[..., Any]] = {
            F.batch_norm: self.batch_norm,
            F.multi_head_attention_forward: self.multi_head_attention,
            F.scaled_dot_product_attention: self.attention,
            F.dropout: self.dropout,
            torch.dropout: self.dropout,
            F.dropout1d: self.dropout_channels,
            F.dropout2d: self.dropout_channels,
            F.dropout3d: self.dropout_channels,
            torch.rand: lambda *shape, **kw: self._draw("rand").rand(*_sizes(shape)),
            torch.randn: lambda *shape, **kw: self._draw("randn").randn(*_sizes(shape)),
            torch.rand_like: lambda v, **kw: self._draw("rand_like").rand(*v.shape),
            torch.randn_like: lambda v, **kw: self._draw("randn_like").randn(*v.shape),
            torch.bernoulli: self.bernoulli,
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the replacement of a function, if there is one."""
        kwargs = kwargs or {}
        if func in NOT_KEYED:
            raise CoterieError(
                f"the model calls {getattr(func, '__name__', func)}, whose random numbers would "
                "differ between engines: use nn.Dropout, torch.rand or torch.randn."
            )
        replacement = self.replacements.get(func)
        if replacement is None:
            return func(*args, **kwargs)
        return replacement(*args, **kwargs)

    # -- batch norm
    def batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise by the mean and variance of the real rows, and record the new statistics."""
        if not training or running_mean is None or running_var is None:
            return F.batch_norm(
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        self.replaced += 1
        dtype = input.dtype  # bfloat16 under autocast, in which sums would lose their last digits
        input = input.to(running_mean.dtype)
        inner = [1] * (input.dim() - 2)
        axes = (0, *range(2, input.dim()))
        in_row = math.prod(input.shape[2:])
        is_real = self._mask_of(input).view(-1, 1, *inner)
        self.values_per_row.append(len(input) // self._rows(input) * in_row)
        count = (is_real.sum() * in_row).clamp(min=1)
        mean = (input * is_real).sum(axes) / count
        centred = input - mean.view(1, -1, *inner)
        var = (centred.square() * is_real).sum(axes) / count
        unbiased = var * count / (count - 1).clamp(min=1)
        for old, new in ((running_mean, mean), (running_var, unbiased)):
            name = self.names.get(id(old))
            if name is not None:
                self.statistics[name] = ((1 - momentum) * old + momentum * new).detach()
        out = centred * (var + eps).rsqrt().view(1, -1, *inner)
        if weight is not None:
            out = out * weight.view(1, -1, *inner)
        if bias is not None:
            out = out + bias.view(1, -1, *inner)
        return out.to(dtype)

    def _rows(self, input: Tensor) -> int:
        return len(input) if self.mask is None else len(self.mask)

    def _mask_of(self, input: Tensor) -> Tensor:
        """The mask of a layer's inputs, whose first axis may have several entries per row."""
        if self.mask is None:
            return input.new_ones(len(input))
        if len(input) % len(self.mask):
            raise CoterieError(
                f"a batch norm gets {len(input)} inputs for {len(self.mask)} rows: the first axis "
                "of its inputs must be that of the rows."
            )
        return self.mask.to(input.dtype).repeat_interleave(len(input) // len(self.mask))

    # -- random functions
    def _draw(self, name: str) -> Draws:
        self.replaced += 1
        if self.draws is None:
            raise CoterieError(
                f"the model calls {name} in evaluation, where nothing may be random: draw only if "
                "self.training."
            )
        return self.draws

    def dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Set entries to 0 with probability p and scale the others."""
        return self._drop(input, p, training, input.shape)

    def dropout_channels(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Set channels to 0 with probability p and scale the others."""
        return self._drop(
            input, p, training, torch.Size([*input.shape[:2], *[1] * (input.dim() - 2)])
        )

    def _drop(self, input: Tensor, p: float, training: bool, shape: torch.Size) -> Tensor:
        if not training or not p:
            return input
        keep = self._draw("dropout").keep(p, shape)
        return torch.where(keep, input / (1 - p) if p < 1 else input, 0.0)

    def bernoulli(self, input: Tensor, **_: Any) -> Tensor:
        """1 with the probabilities of the input."""
        return (self._draw("bernoulli").rand(*input.shape) < input).to(input.dtype)

    # -- attention
    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        """softmax(Q·Kᵀ·scale + mask)·V, with dropout on the weights."""
        return self._weights(query, key, attn_mask, dropout_p, is_causal, scale) @ value

    def _weights(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
    ) -> Tensor:
        self.replaced += 1
        scores = query @ key.mT * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(above, -torch.inf)
        if attn_mask is not None:
            scores = _masked(scores, attn_mask, hides=False)
        return self.dropout(scores.softmax(-1), dropout_p)

    def multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim_to_check: int,
        num_heads: int,
        in_proj_weight: Tensor | None,
        in_proj_bias: Tensor | None,
        bias_k: Tensor | None,
        bias_v: Tensor | None,
        add_zero_attn: bool,
        dropout_p: float,
        out_proj_weight: Tensor,
        out_proj_bias: Tensor | None,
        training: bool = True,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        use_separate_proj_weight: bool = False,
        q_proj_weight: Tensor | None = None,
        k_proj_weight: Tensor | None = None,
        v_proj_weight: Tensor | None = None,
        static_k: Tensor | None = None,
        static_v: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """`nn.MultiheadAttention`; inputs [length, n, features]."""
        if bias_k is not None or static_k is not None or add_zero_attn or query.dim() != 3:
            raise CoterieError(
                "nn.MultiheadAttention with add_bias_kv, add_zero_attn or inputs without a batch "
                "axis is not supported: leave these options out."
            )
        projections: list[Any] = [q_proj_weight, k_proj_weight, v_proj_weight]
        if not use_separate_proj_weight:
            assert in_proj_weight is not None
            projections = list(in_proj_weight.chunk(3))
        biases: list[Any] = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), projections, biases)
        )  # [n, heads, length, features]
        hidden = None
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (-1, num_heads))
            hidden = _masked(torch.zeros((), dtype=q.dtype, device=q.device), attn_mask, hides=True)
        if key_padding_mask is not None:
            zeros = torch.zeros((), dtype=q.dtype, device=q.device) if hidden is None else hidden
            hidden = _masked(zeros, key_padding_mask[:, None, None], hides=True)
        weights = self._weights(q, k, hidden, dropout_p if training else 0.0, False, None)
        mixed = (weights @ v).permute(2, 0, 1, 3).flatten(2)  # [length, n, features]
        out = F.linear(mixed, out_proj_weight, out_proj_bias)
        if not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights


NOT_KEYED = {
    F.alpha_dropout, F.feature_alpha_dropout, F.gumbel_softmax, torch.multinomial, torch.randint,
    torch.randperm, torch.normal, torch.poisson, torch.randint_like, torch.native_dropout,
    torch.Tensor.bernoulli_, torch.Tensor.bernoulli, torch.Tensor.uniform_, torch.Tensor.normal_,
    torch.Tensor.random_, torch.Tensor.multinomial, torch.Tensor.exponential_,
}  # fmt: skip


def _masked(scores: Tensor, mask: Tensor, *, hides: bool) -> Tensor:
    """Add a mask of numbers to scores; a boolean mask hides where it is `hides`."""
    if mask.dtype != torch.bool:
        return scores + mask
    return torch.where(mask if hides else ~mask, -torch.inf, scores)


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of `torch.rand(2, 3)` and of `torch.rand((2, 3))`."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        return tuple(shape[0])
    return shape


# ------------------------------------------------------------------------------ layers
def averaged_buffers(module: nn.Module) -> list[str]:
    """Running statistics of the batch norms that are in training mode."""
    names = []
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS) and layer.training:
            prefix = f"{name}." if name else ""
            names += [f"{prefix}running_mean", f"{prefix}running_var"]
    return names


def counters(module: nn.Module) -> dict[str, Tensor]:
    """New values for the counters of batches, which torch's batch norms increment in place."""
    return {
        name: torch.zeros_like(value)
        for name, value in module.named_buffers()
        if name.endswith("num_batches_tracked")
    }


def check_layers(module: nn.Module) -> None:
    """Raise a `CoterieError` for layers that cannot be trained on clients."""
    for name, layer in module.named_modules():
        where = f"layer {name!r} ({type(layer).__name__})" if name else "the model"
        if isinstance(layer, nn.SyncBatchNorm):
            raise CoterieError(f"{where} needs several GPUs: use nn.BatchNorm2d.")
        if isinstance(layer, BATCH_NORMS) and layer.training:
            if not layer.track_running_stats:
                raise CoterieError(
                    f"{where} has no running statistics, so that a prediction would depend on the "
                    "other rows: leave track_running_stats at True, or use nn.GroupNorm."
                )
            if layer.momentum is None:
                raise CoterieError(
                    f"{where} has momentum=None, a mean over all batches ever seen: give it a "
                    "momentum such as 0.1."
                )
        if isinstance(layer, INSTANCE_NORMS) and layer.track_running_stats and layer.training:
            raise CoterieError(
                f"{where} tracks running statistics: leave track_running_stats at False, or use "
                "a batch norm."
            )
        if isinstance(layer, nn.RNNBase) and layer.dropout and layer.training:
            raise CoterieError(
                f"{where} applies dropout inside torch's kernel, whose randomness would differ "
                "between engines: set its dropout to 0 and put nn.Dropout between single layers."
            )
        is_old = "weight_u" in dict(layer.named_buffers(recurse=False))
        if is_old or type(layer).__name__ == "_SpectralNorm":
            raise CoterieError(
                f"layer {name.partition('.parametrizations')[0]!r} has spectral norm, which "
                "changes its weights in every forward pass: remove it; clip and l2 can regularise "
                "instead."
            )
