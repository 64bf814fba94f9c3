"""The activations of the spec as Triton device functions: float32 in, float32 out. Only operations that
Triton's interpreter runs too (no libdevice), so that every one of them is tested on a CPU."""

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """(1 - e) / (1 + e) with e = exp(-2|x|) never overflows but cancels near zero, where the odd series takes
    over: at |x| < 0.25 its first dropped term is below 1e-8 of the result."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    """max(x, 0) + log(1 + exp(-|x|)): no overflow, and no threshold needed."""
    return tl.where(x < 0.0, 0.0, x) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _expm1(x):
    """For x <= 0: exp(x) - 1, by series where it would cancel."""
    near = x * (
        1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * (0.0083333333 + x * 0.0013888889))))
    )
    return tl.where(x > -0.25, near, tl.exp(x) - 1.0)


@triton.jit
def activate(x, NAME: tl.constexpr, SLOPE: tl.constexpr):
    """NAME is an activation of `fused_mlp.models.spec`, chosen at compile time. Comparisons are written so that NaN
    comes out as NaN, as in eager (`tl.maximum` would swallow it)."""
    if NAME == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    elif NAME == "leaky_relu":
        x = tl.where(x < 0.0, x * SLOPE, x)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.70710678))
    elif NAME == "gelu_tanh":
        x = 0.5 * x * (1.0 + _tanh(0.79788456 * (x + 0.044715 * x * x * x)))
    elif NAME == "silu":
        x = x * _sigmoid(x)
    elif NAME == "tanh":
        x = _tanh(x)
    elif NAME == "sigmoid":
        x = _sigmoid(x)
    elif NAME == "elu":
        x = tl.where(x < 0.0, _expm1(tl.where(x < 0.0, x, 0.0)), x)
    elif NAME == "softplus":
        x = _softplus(x)
    elif NAME == "hardswish":
        six = tl.where(x < -3.0, 0.0, tl.where(x > 3.0, 6.0, x + 3.0))
        x = x * six * 0.16666667
    elif NAME == "relu6":
        x = tl.where(x < 0.0, 0.0, tl.where(x > 6.0, 6.0, x))
    elif NAME == "mish":
        # tanh(log(1 + n)) with n = exp(x) is n(n + 2) / (n(n + 2) + 2); past 20 it is 1 in float32.
        n = tl.exp(tl.where(x > 20.0, 20.0, x))
        x = x * (n * (n + 2.0)) / (n * (n + 2.0) + 2.0)
    else:
        tl.static_assert(NAME == "identity", "unknown activation")
    return x


@triton.jit
def softmax_tile(y, inside, LOG: tl.constexpr):
    """(Log-)softmax over the columns of a tile that holds whole rows; `inside` marks the real columns."""
    y = tl.where(inside[None, :], y, float("-inf"))
    y = y - tl.max(y, 1)[:, None]
    if LOG:
        y = y - tl.log(tl.sum(tl.exp(y), 1))[:, None]
    else:
        y = tl.exp(y)
        y = y / tl.sum(y, 1)[:, None]
    return y
