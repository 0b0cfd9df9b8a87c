"""Medians, spreads and ratios. A ratio exists only together with both of its raw numbers."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_ROUNDS = 5


class MissingNumbers(ValueError):
    """A ratio was asked for without two usable raw numbers."""


@dataclass(frozen=True)
class Samples:
    """What one contestant took in each round, in one unit."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Samples":
        return cls(tuple(float(v) for v in values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile, inclusive method; the value itself for one sample."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def usable(self) -> bool:
        return bool(self.values) and all(
            math.isfinite(v) and v > 0 for v in self.values
        )


@dataclass(frozen=True)
class Ratio:
    """median(top) / median(bottom) with its confidence interval and both medians."""

    top: float
    bottom: float
    low: float
    high: float
    rounds: int

    @property
    def value(self) -> float:
        return self.top / self.bottom

    @property
    def has_interval(self) -> bool:
        """Fewer rounds say nothing about their spread."""
        return self.rounds >= FEWEST_ROUNDS


def ratio(top: Samples, bottom: Samples, seed: int = 1) -> Ratio:
    """Both were measured in the same rounds, so whole rounds are drawn, with replacement.

    The interval holds the middle 95 % of the resampled ratios of medians. MissingNumbers
    when either side has no samples, an unusable one, or another number of rounds.
    """
    for name, side in (("top", top), ("bottom", bottom)):
        if not side.usable:
            raise MissingNumbers(
                f"no ratio: its {name} has the samples {side.values!r}"
            )
    rounds = len(top.values)
    if rounds != len(bottom.values):
        raise MissingNumbers(
            f"no ratio: {rounds} and {len(bottom.values)} rounds do not pair up"
        )
    draw, found = random.Random(seed), []
    for _ in range(RESAMPLES):
        chosen = draw.choices(range(rounds), k=rounds)
        found.append(_median(top, chosen) / _median(bottom, chosen))
    found.sort()
    tail = (1 - CONFIDENCE) / 2
    low = found[math.floor(tail * (RESAMPLES - 1))]
    high = found[math.ceil((1 - tail) * (RESAMPLES - 1))]
    return Ratio(top.median, bottom.median, low, high, rounds)


def _median(samples: Samples, chosen: Sequence[int]) -> float:
    return statistics.median(samples.values[i] for i in chosen)


def growth(units: Sequence[float], times: Sequence[float]) -> list[float]:
    """The exponent between neighbours: 1 is linear, below 1 better, above 1 worse."""
    pairs = zip(units, units[1:], times, times[1:], strict=False)
    return [math.log(t1 / t0) / math.log(u1 / u0) for u0, u1, t0, t1 in pairs]


def order(contestants: Sequence[str], round_number: int) -> list[str]:
    """A B C, B C A, C A B, ...: nobody always runs behind the same other."""
    shift = round_number % len(contestants)
    return [*contestants[shift:], *contestants[:shift]]
