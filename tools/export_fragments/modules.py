"""The modules to export, each a chain of all the spellings of one thing that people write.

A chain feeds each spelling with what the one before it made, so a graph of n spellings should hold the
composite n times. `FRAGMENTS` gives name, module, sample arguments, and the exporters to ask.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as f

# Which exporter, and at which operator set. `keep`: the classic one, told to keep BatchNormalization.
CLASSIC, OLD, OLDEST = ("classic", 17), ("classic", 13), ("classic", 9)
DYNAMO, KEEP = ("dynamo", 18), ("keep", 17)
Exporter = tuple[str, int]

torch.manual_seed(0)  # some modules below draw their weights when this file is read


@dataclass(frozen=True)
class Fragment:
    """A module, its sample arguments, and the exporters to ask."""

    make: Callable[[], nn.Module]
    arguments: tuple[Tensor, ...]
    exporters: Sequence[Exporter]


class _Formula(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x)


def chain(*parts: nn.Module | Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Return a function that makes a chain of modules and formulas."""
    modules = [part if isinstance(part, nn.Module) else _Formula(part) for part in parts]
    return lambda: nn.Sequential(*modules)


def sample(*shape: int) -> Tensor:
    """Return seeded normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# ------------------------------------------------------------------------------------ activations

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)

gelu = chain(
    nn.GELU(),
    lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5))),
    lambda x: x * (0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
    lambda x: (x * (torch.erf(x * math.sqrt(0.5)) + 1.0)) * 0.5,
    lambda x: (torch.erf(x * math.sqrt(0.5)) + 1.0) * 0.5 * x,
)
gelu_tanh = chain(
    nn.GELU("tanh"),
    lambda x: 0.5 * x * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * torch.pow(x, 3.0)))),
    lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    lambda x: x * (0.5 * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * torch.pow(x, 3))))),
    lambda x: 0.5 * (x * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))))),
    lambda x: x * (0.5 * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))),
)
quick_gelu = chain(lambda x: x * torch.sigmoid(1.702 * x), lambda x: torch.sigmoid(x * 1.702) * x)
silu = chain(nn.SiLU(), lambda x: x * torch.sigmoid(x), lambda x: torch.sigmoid(x) * x)
glu = chain(nn.GLU(), lambda x: x.split([2, 2], -1)[0] * torch.sigmoid(x.split([2, 2], -1)[1]))
hard_swish = chain(
    nn.Hardswish(),
    lambda x: x * f.relu6(x + 3.0) / 6.0,
    lambda x: x * (f.relu6(x + 3.0) / 6.0),
    lambda x: x * f.hardsigmoid(x),
    lambda x: x * torch.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
    lambda x: x * (torch.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)),
    lambda x: x * torch.clamp(x / 6.0 + 0.5, 0.0, 1.0),
    lambda x: x * torch.clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
    lambda x: x / 6.0 * f.relu6(x + 3.0),
)
hard_swish_old = chain(lambda x: x * f.relu6(x + 3.0) / 6.0, lambda x: x * (f.relu6(x + 3.0) / 6.0))
hard_sigmoid = chain(
    lambda x: f.relu6(x + 3.0) / 6.0,
    lambda x: torch.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0),
    lambda x: torch.clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
    lambda x: torch.clamp(x / 6.0 + 0.5, 0.0, 1.0),
)
mish = chain(
    nn.Mish(),
    lambda x: x * torch.tanh(f.softplus(x)),
    lambda x: x * torch.tanh(torch.log(1.0 + torch.exp(x))),
)

# ---------------------------------------------------------------------------------- normalizations


class _LayerNorm(nn.Module):
    """LayerNormalization by hand, in the ways that are found in published networks."""

    def __init__(self, form: str, size: int = 8, axis: int = -1) -> None:
        super().__init__()
        shape = (size, 1, 1) if axis == 1 else (size,)
        self.scale = nn.Parameter(sample(*shape))
        self.bias = nn.Parameter(sample(*shape) + 1)
        self.form, self.axis = form, axis

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(self.axis, keepdim=True)
        centred = x - mean
        if self.form == "var":
            return centred / torch.sqrt(x.var(self.axis, keepdim=True, unbiased=False) + 1e-5)
        if self.form == "cast":
            square = centred.to(torch.float32).pow(2)
        else:
            square = centred.pow(2) if self.form in ("pow", "rsqrt") else centred * centred
        spread = square.mean(self.axis, keepdim=True) + 1e-5
        if self.form == "plain":
            return centred / torch.sqrt(spread)
        if self.form in ("rsqrt", "mul_rsqrt"):
            return centred * torch.rsqrt(spread) * self.scale + self.bias
        return self.scale * (centred / torch.sqrt(spread)) + self.bias


class _RmsNorm(nn.Module):
    """RMSNorm as language models write it."""

    def __init__(self, form: str, size: int = 8) -> None:
        super().__init__()
        self.scale = nn.Parameter(sample(size))
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "div":
            return self.scale * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6))
        if self.form == "pow_div":
            return self.scale * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        y = x.to(torch.float32)
        square = y * y if self.form == "mul" else y.pow(2)
        mean = square.mean(-1, keepdim=True) + 1e-6
        y = y * (torch.pow(mean, -0.5) if self.form == "pow" else torch.rsqrt(mean))
        return y if self.form == "plain" else self.scale * y.to(x.dtype)


layer_norm = chain(
    nn.LayerNorm(8),
    nn.LayerNorm(8, elementwise_affine=False),
    *map(_LayerNorm, ("pow", "mul", "rsqrt", "mul_rsqrt", "plain", "cast", "var")),
    _LayerNorm("var", axis=2),
)
layer_norm_channels = chain(
    *(_LayerNorm(form, axis=1) for form in ("pow", "mul", "rsqrt", "mul_rsqrt", "var"))
)
rms_norm = chain(*map(_RmsNorm, ("cast", "div", "pow_div", "plain", "pow", "mul")))
rms_norm_torch = chain(nn.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6, elementwise_affine=False))
group_norm = chain(nn.GroupNorm(2, 8), nn.GroupNorm(4, 8, affine=False))
l2_norm = chain(lambda x: f.normalize(x, dim=-1), lambda x: x / x.norm(dim=-1, keepdim=True))

# ------------------------------------------------------------------------- convolutions, multiplications


class _Residual(nn.Module):
    """x + branch(x), and what comes after."""

    def __init__(self, branch: nn.Module, after: nn.Module, first: bool = True) -> None:
        super().__init__()
        self.branch, self.after, self.first = branch, after, first

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        return self.after(y + x if self.first else x + y)


def _conv(groups: int = 1, size: int = 3, bias: bool = False) -> nn.Module:
    return nn.Conv2d(8, 8, size, padding=size // 2, groups=groups, bias=bias)


def _batch_norm() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        tensor.data = sample(8)
    return norm


def _block(*after: nn.Module, groups: int = 1, size: int = 3, norm: bool = True) -> nn.Module:
    """Return a convolution, its batch normalization unless `norm` is false, and what comes after."""
    return nn.Sequential(_conv(groups, size, bias=not norm), *([_batch_norm()] if norm else []), *after)


def _same() -> nn.Module:
    return nn.Identity()


def conv_blocks() -> nn.Module:
    """Thirteen convolutions: with and without normalization, activation, and residual addition."""
    return nn.Sequential(
        _block(nn.ReLU()),
        _block(nn.ReLU(), norm=False),
        _block(),
        _block(nn.ReLU6()),
        _block(nn.LeakyReLU(0.1)),
        _block(nn.SiLU()),
        _block(nn.Hardswish(), norm=False),
        _Residual(_block(), nn.ReLU()),
        _Residual(_block(norm=False), nn.ReLU(), first=False),
        _Residual(_block(), _same()),
        _Residual(_block(nn.ReLU()), _same()),
        _block(nn.PReLU(8)),
        _block(_Formula(lambda x: torch.minimum(torch.relu(x), torch.tensor(6.0)))),
    )


class _Scaled(nn.Module):
    """A convolution, its scale and bias written as a factor and a summand."""

    def __init__(self, scaled: bool, after: nn.Module) -> None:
        super().__init__()
        self.conv, self.scaled, self.after = _conv(), scaled, after
        self.gain, self.shift = nn.Parameter(sample(8, 1, 1)), nn.Parameter(sample(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.after((y * self.gain if self.scaled else y) + self.shift)


def conv_scaled() -> nn.Module:
    """Ten such convolutions, five with factor and summand, five with a summand alone."""
    return nn.Sequential(
        _Scaled(True, nn.ReLU()),
        _Scaled(False, nn.ReLU()),
        _Scaled(True, nn.ReLU6()),
        _Scaled(True, _Formula(lambda x: x * f.relu6(x + 3.0) / 6.0)),
        _Scaled(False, _Formula(lambda x: x * (torch.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)))),
        _Scaled(True, _Formula(lambda x: x * torch.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))),
        _Scaled(False, _Formula(lambda x: x * (f.relu6(x + 3.0) / 6.0))),
        _Scaled(False, nn.SiLU()),
        _Residual(_Scaled(True, _same()), nn.ReLU()),
        _Residual(_Scaled(False, _same()), nn.LeakyReLU(0.1)),
    )


def depthwise() -> nn.Module:
    """Separable blocks: relu6 twice, silu, and relu; and a grouped convolution that is none."""
    return nn.Sequential(
        _block(nn.ReLU6(), groups=8),
        _block(nn.ReLU6(), size=1),
        _block(nn.ReLU6(), groups=8, norm=False),
        _block(nn.ReLU6(), size=1, norm=False),
        _block(nn.SiLU(), groups=8, norm=False),
        _block(size=1, norm=False),
        _block(nn.ReLU6(), groups=2, norm=False),
        _block(nn.ReLU(), groups=8),
        _block(nn.ReLU(), size=1),
    )


def deconv() -> nn.Module:
    """Two transposed convolutions, one with normalization."""
    return nn.Sequential(
        nn.ConvTranspose2d(8, 8, 2, stride=2),
        _batch_norm(),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 2),
        nn.ReLU(),
    )


class _Squeeze(nn.Module):
    """Squeeze-and-excitation: with convolutions or with linear layers."""

    def __init__(self, kind: str, first: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        layer = nn.Linear if kind == "linear" else lambda a, b: nn.Conv2d(a, b, 1)
        self.down, self.first, self.up, self.gate, self.kind = (
            layer(8, 4),
            first,
            layer(4, 8),
            gate,
            kind,
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "linear":
            s = f.adaptive_avg_pool2d(x, 1).flatten(1)
            return x * self.gate(self.up(self.first(self.down(s))))[:, :, None, None]
        s = x.mean((2, 3), keepdim=True) if self.kind == "mean" else f.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.up(self.first(self.down(s))))


class _SqueezeView(_Squeeze):
    """The same, its gate brought into shape by a view."""

    def forward(self, x: Tensor) -> Tensor:
        s = f.adaptive_avg_pool2d(x, 1).view(1, 8)
        return x * self.gate(self.up(self.first(self.down(s)))).view(1, 8, 1, 1)


class _SqueezeAdded(nn.Module):
    """The same, biases added by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(4, 8, 1, bias=False)
        self.first, self.second = nn.Parameter(sample(1, 4, 1, 1)), nn.Parameter(sample(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        s = torch.relu(self.down(f.adaptive_avg_pool2d(x, 1)) + self.first)
        return x * f.hardsigmoid(self.up(s) + self.second)


squeeze_excitation = chain(
    _SqueezeAdded(),
    _Squeeze("conv", nn.ReLU(), nn.Sigmoid()),
    _Squeeze("conv", nn.ReLU(), nn.Hardsigmoid()),
    _Squeeze("conv", nn.SiLU(), nn.Sigmoid()),
    _Squeeze("mean", nn.SiLU(), nn.Sigmoid()),
    _Squeeze("linear", nn.ReLU(), nn.Sigmoid()),
    _SqueezeView("linear", nn.ReLU(), nn.Sigmoid()),
)


def linears() -> nn.Module:
    """Nine linear layers: two plain, two relu, two gelu, one each with silu, tanh, and no bias."""
    return nn.Sequential(
        nn.Linear(8, 8),
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.Linear(16, 8),
        nn.ReLU(),
        nn.Linear(8, 16),
        nn.GELU(),
        nn.Linear(16, 8),
        nn.GELU("tanh"),
        nn.Linear(8, 8),
        nn.SiLU(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8, bias=False),
        nn.ReLU(),
        nn.Linear(8, 8, bias=False),
    )


def linear_gelus() -> nn.Module:
    """Three linear layers with GELU by the error function, one by the hyperbolic tangent."""
    return nn.Sequential(
        nn.Linear(8, 8),
        _Formula(lambda x: 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))),
        nn.Linear(8, 8, bias=False),
        _Formula(lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
        nn.Linear(8, 8),
        _Formula(lambda x: x * (0.5 * (1.0 + torch.erf(x * math.sqrt(0.5))))),
        nn.Linear(8, 8),
        _Formula(
            lambda x: 0.5 * x * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * torch.pow(x, 3.0))))
        ),
    )


def residual_linears() -> nn.Module:
    """Two linear layers that add to what came in, and one in between that does not."""
    return nn.Sequential(
        _Residual(nn.Linear(8, 8), _same()),
        nn.Linear(8, 8),
        _Residual(nn.Linear(8, 8), _same(), first=False),
    )


class _Gated(nn.Module):
    """The gated feed-forward part of language models."""

    def __init__(self, activation: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=bias) for _ in range(3))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


gated_mlp = chain(
    _Gated(nn.SiLU()), _Gated(nn.GELU("tanh")), _Gated(nn.SiLU(), bias=True), _Gated(nn.GELU())
)


class _ScaleShift(nn.Module):
    """A multiplication and an addition of learned values."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(sample(size)), nn.Parameter(sample(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


scale_shift = chain(_ScaleShift(8), _ScaleShift(1), _ScaleShift(8))

# -------------------------------------------------------------------------------------- attention


class _Attention(nn.Module):
    """Self-attention of two heads, scores and mask as `form` says."""

    def __init__(self, form: str, mask: str = "none") -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.form, self.mask = form, mask

    def forward(self, x: Tensor, mask: Tensor, seen: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (part(x).view(b, n, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        given = {"float": mask, "window": mask, "bool": seen}.get(self.mask)
        if self.form == "sdpa":
            y = f.scaled_dot_product_attention(q, k, v, given, is_causal=self.mask == "causal")
        else:
            y = self.softmax(q, k, given, seen) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, 8))

    def softmax(self, q: Tensor, k: Tensor, given: Tensor | None, seen: Tensor) -> Tensor:
        if self.form == "scaled_q":
            scores = (q * 0.5) @ k.transpose(-2, -1)
        elif self.form == "scaled_mul":
            scores = q @ k.transpose(-2, -1) * 0.5
        elif self.form == "unscaled":
            scores = q @ k.transpose(-2, -1)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(4)
        if self.mask == "float":
            scores = scores + given
        elif self.mask == "window":
            scores = (scores + given).view(1, *scores.shape) + given
            scores = scores.view(scores.shape[1:])
        elif self.mask == "where":
            scores = torch.where(seen, scores, torch.tensor(-1e4))
        elif self.mask == "bool":
            scores = scores.masked_fill(~given, -1e4)
        if self.mask == "window":
            return torch.softmax(scores, -1)
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)


class _Attentions(nn.Module):
    """Attention of several forms, one after the other."""

    def __init__(self, *forms: tuple[str, str]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_Attention(*form) for form in forms)

    def forward(self, x: Tensor, mask: Tensor, seen: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, mask, seen)
        # All inputs stay inputs, whatever the forms read.
        return x + mask.sum() * 0 + seen.sum() * 0


def sdpa() -> nn.Module:
    """torch's own function, with each kind of mask."""
    return _Attentions(("sdpa", "none"), ("sdpa", "float"), ("sdpa", "bool"), ("sdpa", "causal"))


def attention() -> nn.Module:
    """Attention by hand: scaled before, after, and not; masked by addition and by choice."""
    return _Attentions(
        ("scaled_q", "none"),
        ("scaled_mul", "none"),
        ("scaled_mul", "float"),
        ("scaled_div", "none"),
        ("scaled_div", "float"),
        ("scaled_div", "bool"),
        ("scaled_mul", "where"),
        ("scaled_q", "window"),
        ("unscaled", "float"),
        ("unscaled", "none"),
    )


class _MultiHead(nn.Module):
    """torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=True)[0]


TOKENS = (sample(2, 5, 8),)
IMAGE = (sample(1, 8, 6, 6),)
ATTENTION = (sample(1, 5, 8), sample(5, 5), torch.ones(5, 5, dtype=torch.bool).tril())

FRAGMENTS = {
    "gelu": Fragment(gelu, TOKENS, (CLASSIC, DYNAMO)),
    "gelu_tanh": Fragment(gelu_tanh, TOKENS, (CLASSIC, DYNAMO)),
    "quick_gelu": Fragment(quick_gelu, TOKENS, (CLASSIC, DYNAMO)),
    "silu": Fragment(silu, TOKENS, (CLASSIC, DYNAMO)),
    "hard_swish": Fragment(hard_swish, TOKENS, (OLD, CLASSIC, DYNAMO)),
    "hard_swish_old": Fragment(hard_swish_old, TOKENS, (OLDEST,)),
    "glu": Fragment(glu, TOKENS, (CLASSIC, DYNAMO)),
    "hard_sigmoid": Fragment(hard_sigmoid, TOKENS, (CLASSIC, DYNAMO)),
    "mish": Fragment(mish, TOKENS, (CLASSIC, DYNAMO)),
    "layer_norm": Fragment(layer_norm, TOKENS, (OLD, CLASSIC, DYNAMO)),
    "layer_norm_channels": Fragment(layer_norm_channels, IMAGE, (CLASSIC, DYNAMO)),
    "rms_norm": Fragment(rms_norm, TOKENS, (CLASSIC, DYNAMO)),
    "rms_norm_torch": Fragment(rms_norm_torch, TOKENS, (DYNAMO,)),  # the classic one does not know it
    "group_norm": Fragment(group_norm, IMAGE, (CLASSIC, DYNAMO)),
    "l2_norm": Fragment(l2_norm, TOKENS, (CLASSIC, DYNAMO)),
    "conv_blocks": Fragment(conv_blocks, IMAGE, (KEEP, OLD, DYNAMO)),
    "conv_scaled": Fragment(conv_scaled, IMAGE, (CLASSIC, DYNAMO)),
    "depthwise": Fragment(depthwise, IMAGE, (OLDEST, KEEP, DYNAMO)),
    "deconv": Fragment(deconv, IMAGE, (KEEP, DYNAMO)),
    "squeeze_excitation": Fragment(squeeze_excitation, IMAGE, (CLASSIC, DYNAMO)),
    "linears": Fragment(linears, TOKENS, (CLASSIC, DYNAMO)),
    "linears_2d": Fragment(linears, (sample(3, 8),), (CLASSIC, DYNAMO)),
    "linear_gelus": Fragment(linear_gelus, TOKENS, (CLASSIC, DYNAMO)),
    "residual_linears": Fragment(residual_linears, TOKENS, (CLASSIC, DYNAMO)),
    "gated_mlp": Fragment(gated_mlp, TOKENS, (CLASSIC, DYNAMO)),
    "scale_shift": Fragment(scale_shift, TOKENS, (CLASSIC, DYNAMO)),
    "attention": Fragment(attention, ATTENTION, (CLASSIC, DYNAMO)),
    "sdpa": Fragment(sdpa, ATTENTION, (CLASSIC, DYNAMO)),
    "multi_head": Fragment(_MultiHead, (sample(2, 5, 8),), (CLASSIC, DYNAMO)),
}
