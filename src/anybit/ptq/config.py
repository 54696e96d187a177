# SPDX-License-Identifier: Apache-2.0
"""Configuration of the search: every threshold with its unit and meaning, and the presets."""

from dataclasses import dataclass, field

from anybit.errors import OptionError
from anybit.quant_types.suggestions import describe_unknown

_EVERY_TWENTIETH = tuple(1 - step / 20 for step in range(14))


@dataclass(frozen=True)
class CalibrationConfig:
    """The division of the calibration samples, and how much of them is kept in memory.

    Attributes:
        compare_samples: Comparison samples, on which candidates of a tensor are ranked.
        confirm_samples: Confirmation samples, on which the best candidate has to win, too.
        small_bytes: Bytes up to which more of both are kept, if samples are small.
        most_times: The largest multiple of these sample counts that is kept then.
        rounding_samples: The most samples for weight rounding.
        ablation_one_of: One of n calibration samples is an ablation sample.
        most_ablation: The most ablation samples.
        memory_bytes: Bytes of activations kept for the layers that are tuned together.
        crop_bytes: Bytes of one activation, and of a layer's output, kept per sample.
        least_runs: The fewest runs of the model into which the samples kept are divided.
    """

    compare_samples: int = 12
    confirm_samples: int = 6
    small_bytes: int = 2**20
    most_times: int = 8
    rounding_samples: int = 128
    ablation_one_of: int = 6
    most_ablation: int = 64
    memory_bytes: int = 2**28
    crop_bytes: int = 2**20
    least_runs: int = 4


@dataclass(frozen=True)
class RandomTokensConfig:
    """Random token ids as samples (`data="random-tokens"`).

    Attributes:
        samples: Rows of all batches, at least `least_batches` batches of them.
        rows: Rows of a batch, if the model does not fix them.
        tokens: Tokens of a row, if the model does not fix them.
        least_batches: The fewest batches: samples of a model that mixes rows.
        most_kinds: Rows of a table up to which it holds kinds of tokens, not positions.
        max_elements: The most elements of an input in a batch.
    """

    samples: int = 128
    rows: int = 8
    tokens: int = 32
    least_batches: int = 8
    most_kinds: int = 16
    max_elements: int = 2**24


@dataclass(frozen=True)
class RangeConfig:
    """Range candidates of activations, and when one is kept.

    Attributes:
        fractions: Shares of the largest magnitude at which ranges are clipped.
        scaled_fractions: The same for ranges of scaled channels.
        wide_bits: Bits from which on the whole range is taken, and nothing searched.
        wide_factor: The factor on the range then, which leaves room for unseen values.
        halving: Successive halving: the first rounds use one of n samples, and keep one of n
            candidates.
        reported: Candidates that a report shows beside the whole range.
    """

    fractions: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    scaled_fractions: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6)
    wide_bits: int = 12
    wide_factor: float = 2.0
    halving: int = 4
    reported: int = 7


@dataclass(frozen=True)
class ScalingConfig:
    """SmoothQuant and outlier scaling candidates of activations.

    Attributes:
        strengths: SmoothQuant's alpha, from weights to activations.
        outlier_shares: Channels beyond these shares of the largest magnitude are scaled down.
        largest_exponent: The largest power of two of a factor.
        headroom: Divided by the number of values of a channel, the share of the tensor's range
            that is added to the channel's range.
        headroom_times: The limit of the tensor's range here, in multiples of the largest
            magnitude of the channel.
    """

    strengths: tuple[float, ...] = (0.3, 0.5, 0.7, 0.85, 1.0)
    outlier_shares: tuple[float, ...] = (0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.0625)
    largest_exponent: int = 24
    headroom: int = 16
    headroom_times: int = 16


@dataclass(frozen=True)
class DynamicConfig:
    """Choice between static and dynamic scales (`activations="auto"`).

    Attributes:
        least_gain: Noise power of a layer with static scales over that with dynamic ones, from
            which dynamic scales are chosen.
        least_noise: Noise over signal of a layer below which static scales stay.
        least_network_gain: Gain of the SQNR of the outputs in dB below which all scales stay
            static; also that of dynamic scales in all layers over those in the chosen ones.
    """

    least_gain: float = 1.5
    least_noise: float = 1e-5
    least_network_gain: float = 0.5


@dataclass(frozen=True)
class WeightConfig:
    """Range candidates of weights.

    Attributes:
        shares: Shares of the largest magnitude of a channel or block at which it is clipped.
        wide_bits: Bits from which on weights are not clipped.
    """

    shares: tuple[float, ...] = _EVERY_TWENTIETH
    wide_bits: int = 8


@dataclass(frozen=True)
class GptqConfig:
    """Weight rounding by GPTQ.

    Attributes:
        max_bits: The most bits of weights for GPTQ; wider weights are rounded to nearest.
        max_terms: The most terms of a sum that are rounded together. Longer sums are split, and
            the correlation of their parts is ignored.
        rows_per_term: Rows of activations per term of a sum that are looked at.
        least_rows: The fewest rows that are looked at.
        damping: The least share of the mean of the Hessian's diagonal that is added to it.
        damping_per_term: The least share per term and row: few rows give poor estimates.
    """

    max_bits: int = 8
    max_terms: int = 2048
    rows_per_term: int = 8
    least_rows: int = 1024
    damping: float = 0.01
    damping_per_term: float = 0.1


@dataclass(frozen=True)
class AwqConfig:
    """AWQ scaling of weights in blocks with power-of-two scales.

    Attributes:
        fine_bits: Bits from which on weights need no scaling.
        strengths: AWQ's alpha of the factors that the search starts with.
        steps_per_octave: Factors tried per octave, in the octave above and the one below.
        rounds: The most rounds of the search.
        least_gain: Share by which a new factor has to lower the error of a channel.
        faintest: Magnitude of the faintest channel beside the largest, as the search takes it.
    """

    fine_bits: int = 8
    strengths: tuple[float, ...] = (0.0, 0.25, 0.5)
    steps_per_octave: int = 8
    rounds: int = 2
    least_gain: float = 1e-3
    faintest: float = 1e-4


@dataclass(frozen=True)
class AblationConfig:
    """Samples of the end-to-end ablation.

    Attributes:
        samples: The most samples.
        input_bytes: The most bytes of their inputs.
        output_bytes: Bytes of the float model's outputs after which no further batch is kept.
        batch_bytes: Bytes of the inputs of a batch.
    """

    samples: int = 40
    input_bytes: int = 2**26
    output_bytes: int = 2**27
    batch_bytes: int = 2**20


@dataclass(frozen=True)
class SensitivityConfig:
    """Measurement of the sensitivity of the outputs to single weights and activations.

    Attributes:
        samples: Samples to run, if rows are samples.
        whole_items: Samples to run, if items are.
        batch_samples: Samples per batch.
        tensors_per_run: Activations that are recorded in one run of the model.
        measured_widths: Bits at which the noise of weights is measured, widest first.
        error_widths: Bits at which at least their rounding error is computed.
        growth_per_width: Expected growth of the noise power between measured widths.
        max_additive_noise: Noise-to-signal ratio up to which noise powers add up.
    """

    samples: int = 40
    whole_items: int = 2
    batch_samples: int = 5
    tensors_per_run: int = 8
    measured_widths: tuple[int, ...] = (8, 6, 4)
    error_widths: tuple[int, ...] = (8, 6, 4, 2)
    growth_per_width: float = 16.0
    max_additive_noise: float = 0.1


@dataclass(frozen=True)
class BudgetConfig:
    """Mixed precision within a budget.

    Attributes:
        base_bits: Bits at which activations are measured, and from which widths are varied.
        weight_widths: Bits of weights.
        activation_widths: Bits of activations.
        least_activation_bits: The fewest bits of activations for a budget of bit operations.
        exact_bits: The fewest bits of activations whose noise follows from that at `base_bits`.
        max_independent: The most activations of a group whose widths may differ.
        wide_cost: Cost per multiplication above `base_bits`, for a budget of noise; more than any
            product of two widths.
        layer_share: The largest share of the allowed noise for one layer.
        rounds: Assignments that are evaluated to correct the prediction.
        max_rounds: The most of these, until one is within the budget.
        retry_ratio: The next predicted noise over that of an assignment beyond the budget.
        max_between: The most assignments between one beyond the budget and one within it.
        min_ratio: The least ratio of the predicted noise of two of these.
        max_trims: The most groups that are tried with fewer bits at the end.
        min_saving: The share of the cost that such a trim has to save.
        aim: Target of the predicted noise, over the allowed noise.
        near: Measured noise, over the allowed noise, from which on another round is skipped.
        max_front_points: The most points of the reported front.
    """

    base_bits: int = 8
    weight_widths: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 16)
    activation_widths: tuple[int, ...] = (8, 16)
    least_activation_bits: int = 4
    exact_bits: int = 6
    max_independent: int = 4
    wide_cost: int = 2**20
    layer_share: float = 0.25
    rounds: int = 3
    max_rounds: int = 8
    retry_ratio: float = 10**-0.15
    max_between: int = 5
    min_ratio: float = 10**-0.03
    max_trims: int = 8
    min_saving: float = 0.01
    aim: float = 10**-0.02
    near: float = 10**-0.05
    max_front_points: int = 100


@dataclass(frozen=True)
class QuantizeConfig:
    """All thresholds of the search.

    Attributes:
        searches: Whether ranges, scaling and weight rounding are searched on samples. If not,
            tensors get their whole range, weights are rounded to nearest, and the model runs once
            per sample.
    """

    searches: bool = True
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    random_tokens: RandomTokensConfig = field(default_factory=RandomTokensConfig)
    ranges: RangeConfig = field(default_factory=RangeConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    dynamic: DynamicConfig = field(default_factory=DynamicConfig)
    weights: WeightConfig = field(default_factory=WeightConfig)
    gptq: GptqConfig = field(default_factory=GptqConfig)
    awq: AwqConfig = field(default_factory=AwqConfig)
    ablation: AblationConfig = field(default_factory=AblationConfig)
    sensitivity: SensitivityConfig = field(default_factory=SensitivityConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)


DEFAULT = QuantizeConfig()
FAST = QuantizeConfig(searches=False)
PRESETS = {"fast": FAST, "default": DEFAULT}


def get_preset(effort: str) -> QuantizeConfig:
    """Return the configuration of an effort.

    Raises:
        OptionError: There is no such effort.
    """
    if effort not in PRESETS:
        raise OptionError(
            f"effort={effort!r}: {describe_unknown('value', str(effort), list(PRESETS))}"
        )
    return PRESETS[effort]
