"""Compute sums without rounding, independent of the order and the split of the values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
# (the sum of the finite values as a whole number of units, the sum of the others)
SumState: TypeAlias = tuple[int, float]

# np.frexp returns mantissas of 53 bits and exponents of at least -1073. The product of two doubles
# equals two doubles: the rounded product of the mantissas, and the rounding error, a multiple of
# 2**-106. Exponents are therefore at least -105 - 2 * 1073, and all values are integer multiples
# of 2**-2304.
_MIN_EXPONENT = -2251
_UNIT_BITS = 2304
_SPLITTER = 2.0**27 + 1
# Mantissas are split into halves of up to 27 bits. A float64 adds 2**24 of them exactly.
_HIGH_BITS = 27
_LOW_BITS = 26
_CHUNK = 2**24


@dataclasses.dataclass
class ExactSum:
    """The exact sum of doubles.

    Attributes:
        units: The sum of the finite values, in units of 2**-2304.
        special: The sum of the values that are not finite; 0.0 without such values.
    """

    units: int = 0
    special: float = 0.0

    def add(self, values: npt.ArrayLike) -> None:
        """Add all elements of an array of float64."""
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        is_finite = np.isfinite(flat)
        if not is_finite.all():
            # Summed in Python, because NumPy would warn about inf - inf.
            self.special = sum(flat[~is_finite].tolist(), self.special)
            flat = flat[is_finite]
        self._add_units(*np.frexp(flat))

    def add_products(self, values: npt.ArrayLike, weights: npt.ArrayLike) -> None:
        """Add the products ``values * weights`` without rounding, overflow or underflow.

        Args:
            values: Any shape, float64.
            weights: The same shape, finite and > 0.
        """
        flat = np.asarray(values, dtype=np.float64).reshape(-1)
        factors = np.asarray(weights, dtype=np.float64).reshape(-1)
        is_finite = np.isfinite(flat)
        self.add(flat[~is_finite])
        values_mantissas, values_exponents = np.frexp(flat[is_finite])
        weights_mantissas, weights_exponents = np.frexp(factors[is_finite])
        exponents = values_exponents + weights_exponents
        for part in _multiply_exactly(values_mantissas, weights_mantissas):
            mantissas, shifts = np.frexp(part)
            self._add_units(mantissas, shifts + exponents)

    def _add_units(self, mantissas: Floats, exponents: npt.NDArray[np.int32]) -> None:
        for start in range(0, mantissas.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            self.units += _sum_units(mantissas[chunk], exponents[chunk])

    def state(self) -> SumState:
        """Return the sum as plain values."""
        return self.units, self.special


def _multiply_exactly(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return the rounded product of mantissas and its rounding error.

    Source: T. J. Dekker, A floating-point technique for extending the available precision, 1971.
    """
    product = left * right
    left_high, left_low = _split_mantissas(left)
    right_high, right_low = _split_mantissas(right)
    rounding_error = left_high * right_high - product
    rounding_error = (
        rounding_error + left_high * right_low + left_low * right_high + left_low * right_low
    )
    return product, rounding_error


def _split_mantissas(mantissas: Floats) -> tuple[Floats, Floats]:
    scaled = mantissas * _SPLITTER
    high = scaled - (scaled - mantissas)
    return high, mantissas - high


def _sum_units(mantissas: Floats, exponents: npt.NDArray[np.int32]) -> int:
    """Return the sum of ``mantissa * 2**exponent``; float64 is exact for a single exponent."""
    lowest = int(exponents.min())
    scaled = np.ldexp(mantissas, _HIGH_BITS)
    high = np.floor(scaled)
    low = np.ldexp(scaled - high, _LOW_BITS)
    bins = exponents - lowest
    high_sums = np.bincount(bins, weights=high)
    low_sums = np.bincount(bins, weights=low)
    total = 0
    for index in np.flatnonzero((high_sums != 0) | (low_sums != 0)).tolist():
        part = (int(high_sums[index]) << _LOW_BITS) + int(low_sums[index])
        total += part << (index + lowest - _MIN_EXPONENT)
    return total


def merge_sums(states: Sequence[SumState]) -> SumState:
    """Return the sum of sums."""
    return sum(units for units, _ in states), sum((special for _, special in states), 0.0)


def round_sum(state: SumState) -> float:
    """Return a sum rounded to the nearest double; infinite if it is too large."""
    return ratio(state, (1 << _UNIT_BITS, 0.0))


def ratio(dividend: SumState, divisor: SumState) -> float:
    """Return a quotient of sums, rounded to the nearest double; NaN for 0/0.

    Args:
        dividend: Any sum.
        divisor: A finite sum, >= 0.
    """
    units, special = dividend
    if special != 0:  # NaN included
        return special
    if divisor[0] == 0:
        return math.nan if units == 0 else _signed_infinity(units)
    try:
        return units / divisor[0]  # Python rounds a quotient of integers once, correctly
    except OverflowError:
        return _signed_infinity(units)


def _signed_infinity(sign: int) -> float:
    return math.inf if sign > 0 else -math.inf
