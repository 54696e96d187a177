// SPDX-License-Identifier: Apache-2.0
#include "packed_product.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "curve.hpp"
#include "damage.hpp"
#include "packed_run.hpp"
#include "packed_state.hpp"
#include "rounded_line.hpp"
#include "rows.hpp"
#include "scaled_steps.hpp"
#include "tap_sums.hpp"
#include "window_taps.hpp"

namespace anybit::lowbit {

namespace {

using State = PackedProduct::State;

bool reads_planes(const State& at) { return at.from.coding == Coding::planes; }

// Coefficients that turn the sum of a scheme into the accumulator, for a channel with the weight
// unit `unit` (see `Scheme`). Indices in the border and after the last channel are 0.
struct Folding {
  std::int64_t scale = 0;
  std::int64_t everywhere = 0;  // constant term
  std::int64_t inside = 0;      // factor of the sum of weights inside the tensor
  std::int64_t outside = 0;     // factor of the sum of weights outside
};

Folding folding_of(const State& at, std::int64_t unit, std::int64_t positive) {
  const std::int64_t low = at.source.lowest, step = at.source.step;
  switch (at.scheme) {
    case Scheme::dot8:
    case Scheme::dot4:
    case Scheme::dot3:
    case Scheme::dot2:
    case Scheme::dot1:
    case Scheme::wide8:
    case Scheme::depthwise:
    case Scheme::depthwise4:
      return {step, 0, low, 0};
    case Scheme::xor11:
    case Scheme::xor12:
    case Scheme::ternary11:
    case Scheme::ternary12:
      return {-step * unit, (reads_planes(at) ? 3 : 1) * step * unit * positive, low, 0};
    case Scheme::rows11:
    case Scheme::rows22:
      return {-step * unit, largest_row_code(at.source.levels) * step * unit * positive, low, 0};
    case Scheme::signs12: {
      // After the last channel an index of 0 counts as a sign, but has no weight.
      const std::int64_t words = (at.source.channels + 31) / 32;
      const std::int64_t gaps =
          (words * 32 - at.source.channels) * at.window.kernel_height * at.window.kernel_width;
      return {-step * unit, -step * unit * gaps, low + step, step};
    }
    case Scheme::and21:
    case Scheme::and22:
      return {step * unit, 0, low, 0};
  }
  return {};
}

// Only the low 32 bits matter: accumulators fit 32 bits, intermediate terms may not.
std::int32_t wrapped(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

// Without a border, or with border codes of 0, all windows are in one class.
std::pair<AxisClasses, AxisClasses> classify_windows(const State& at) {
  const Window& w = at.window;
  if (at.source.lowest == 0 || Border::of(w).empty())
    return {{at.target.height, w.kernel_height}, {at.target.width, w.kernel_width}};
  return {{at.source.height, at.target.height, w.kernel_height, w.stride_height, w.dilation_height,
           w.pad_top},
          {at.source.width, at.target.width, w.kernel_width, w.stride_width, w.dilation_width,
           w.pad_left}};
}

void fold(State& at, const Weights& weights, const WeightForm& form, const Epilogue& epilogue,
          std::int64_t most_bytes) {
  auto [lines, columns] = classify_windows(at);
  at.padded = (weights.channels + chunk_channels - 1) / chunk_channels * chunk_channels;
  const auto constants =
      at.padded * static_cast<std::int64_t>(lines.taps.size() * columns.taps.size());
  need_room(constants * 4, most_bytes);
  at.constants = Aligned<std::int32_t>(constants);
  at.scales = Aligned<std::int32_t>(at.padded);
  const auto* const thresholds = std::get_if<Thresholds>(&epilogue);
  const bool two_bits = at.scheme == Scheme::and21 || at.scheme == Scheme::and22 ||
                        (at.scheme == Scheme::rows22 && !form.ternary);
  TapSums sums(at.window);
  for (std::int64_t channel = 0; channel < weights.channels; ++channel) {
    sums.read(weights, channel);
    const std::int64_t unit =
        two_bits ? -form.set.front() / 2 : form.units[static_cast<std::size_t>(channel)];
    const Folding folding = folding_of(at, unit, sums.positive());
    // Thresholds compare the accumulator times the direction.
    const std::int64_t sign =
        thresholds == nullptr ? 1 : thresholds->directions[static_cast<std::size_t>(channel)];
    at.scales[channel] = wrapped(sign * folding.scale);
    std::int64_t place = channel;
    for (const Taps& rows : lines.taps)
      for (const Taps& taps : columns.taps) {
        const std::int64_t inside = sums.of(rows, taps);
        at.constants[place] = wrapped(sign * (folding.everywhere + folding.inside * inside +
                                              folding.outside * (sums.all() - inside)));
        place += at.padded;
      }
  }
  at.column_classes = static_cast<std::int32_t>(columns.taps.size());
  at.line_class = std::move(lines.of);
  at.column_class = std::move(columns.of);
}

// Splits the channels into panels, which never cross a chunk or a group.
std::vector<PanelChannels> plan_panels(State& at, std::int64_t groups) {
  const std::int64_t channels = at.target.channels, group_size = channels / groups;
  const std::int64_t inner = at.source.channels / groups;
  const bool depthwise = is_depthwise(at.scheme);
  std::vector<PanelChannels> panels;
  for (std::int64_t chunk = 0; chunk < channels; chunk += chunk_channels) {
    at.first_run.push_back(at.runs.size());
    const std::int64_t end = std::min(channels, chunk + chunk_channels);
    for (std::int64_t channel = chunk; channel < end;) {
      const std::int64_t group = depthwise ? 0 : channel / group_size;
      const std::int64_t last = depthwise ? end : std::min(end, (group + 1) * group_size);
      State::PanelRun run;
      run.panel = static_cast<std::int64_t>(panels.size());
      run.channel = channel - chunk;
      if (depthwise) run.source = channel;
      else if (at.from.coding == Coding::bytes) run.source = group * inner;
      else run.source = group * (inner / 32) * word_bytes(at.from.coding);
      for (; channel < last; channel += panels.back().count, ++run.panels)
        panels.push_back(
            {channel, static_cast<int>(std::min<std::int64_t>(panel_channels, last - channel))});
      at.runs.push_back(run);
    }
  }
  at.first_run.push_back(at.runs.size());
  return panels;
}

// Whether copying the runs of a window takes less time than the padding of each run.
bool gathers_windows(const State& at) {
  if (!at.kernels->gathers_windows || !is_dot(at.scheme)) return false;
  const std::int64_t run = at.window.kernel_width * at.source.channels,
                     count = at.window.kernel_height, step = values_per_step(at.scheme);
  const auto padded = [&](std::int64_t bytes) { return (bytes + step - 1) / step * step; };
  return run <= copied_bytes && run * count + copied_bytes <= gathered_bytes &&
         padded(run * count) * 10 <= padded(run) * count * 9;
}

// Finds the contiguous segments of a window; adjacent taps of a line form one segment if they
// touch.
Runs plan_segments(State& at, std::int64_t groups) {
  const Window& w = at.window;
  const std::int64_t taps = w.kernel_height * w.kernel_width;
  const bool joined = groups == 1 && w.dilation_width == 1 && !is_depthwise(at.scheme);
  for (std::int64_t y = 0; y < w.kernel_height; ++y)
    for (std::int64_t x = 0; x < (joined ? 1 : w.kernel_width); ++x)
      at.segments.push_back(y * w.dilation_height * at.from.line +
                            x * w.dilation_width * at.from.pixel);
  const auto count = static_cast<std::int64_t>(at.segments.size());
  if (joined && gathers_windows(at)) {
    at.gathered = {std::move(at.segments), w.kernel_width * at.source.channels};
    at.segments = {0};
    return {1, taps};
  }
  // Repeated segments have weights of 0.
  const std::size_t together = at.scheme == Scheme::depthwise4    ? taps_together
                               : at.tap_order == TapOrder::single ? 1
                                                                  : 2;
  while (is_depthwise(at.scheme) && at.segments.size() % together != 0)
    at.segments.push_back(at.segments.back());
  return {count, taps / count};
}

// See State::gap.
int gap_of(const State& at) {
  const Window& w = at.window;
  if (!at.kernels->wants_even_windows || !is_dot(at.scheme) || w.stride_height != 1 ||
      w.stride_width != 1 || at.from.line % at.from.pixel != 0)
    return -1;
  const std::int64_t gap = at.from.line / at.from.pixel - at.target.width;
  return gap < at.target.width ? static_cast<int>(gap) : -1;
}

TapOrder tap_order_of(const State& at, std::int64_t terms) {
  if (at.scheme != Scheme::depthwise || at.kernels->short_tap_pairs == nullptr)
    return TapOrder::single;
  // Sums of fewer pairs would be widened too often.
  constexpr std::int64_t least_terms = 4;
  return terms < least_terms ? TapOrder::pairs : TapOrder::byte_pairs;
}

// Keeps the sums of a block in the L1 cache, and the weights if they fit as well.
int block_pixels_of(const State& at) {
  constexpr std::ptrdiff_t near_bytes = 40 * 1024;
  const std::ptrdiff_t chunk =
      at.weights.panel * 8 / bits_of_index(at.scheme) * (chunk_channels / panel_channels);
  return chunk <= near_bytes ? at.kernels->near_pixels : at.kernels->block_pixels;
}

// Folds scale and constants into the thresholds, or omits them where they are 1 and 0.
void simplify(State& at, std::int64_t largest_weight) {
  if (at.scheme == Scheme::signs12) return;
  const bool has_pieces = at.epilogue.kind == EpilogueKind::pieces;
  const bool compares = has_pieces || at.epilogue.kind == EpilogueKind::thresholds ||
                        at.epilogue.kind == EpilogueKind::many_thresholds;
  // All factors are small: no intermediate product overflows.
  const std::int64_t largest_code =
      at.source.step * (at.source.levels - 1) + std::abs(at.source.lowest);
  const std::int64_t terms = at.source.channels * at.window.kernel_height * at.window.kernel_width;
  constexpr std::int64_t most = 1 << 29;
  const bool folds = compares && at.constants.size() == at.padded && largest_code <= most &&
                     terms <= most / std::max<std::int64_t>(1, largest_weight * largest_code);
  if (!folds && (!compares || has_pieces)) {
    const auto all = [](const Aligned<std::int32_t>& numbers, std::int64_t size, int expected) {
      return std::all_of(numbers.data(), numbers.data() + size,
                         [=](std::int32_t number) { return number == expected; });
    };
    if (all(at.scales, at.target.channels, 1))
      at.settling = all(at.constants, at.constants.size(), 0) ? Settling::bare : Settling::plain;
    return;
  }
  if (!folds) return;
  const std::int64_t count = has_pieces ? most_pieces - 1 : at.target.levels - 1;
  for (std::int64_t channel = 0; channel < at.target.channels; ++channel) {
    std::int32_t& scale = at.scales[channel];
    fold_into_thresholds(at.epilogue, channel, count, scale, at.constants[channel]);
    scale = scale < 0 ? -1 : 0;
  }
  at.settling = Settling::raw;
}

// Selects the kernel of depthwise sums.
void select_depthwise_sums(State& at, std::int64_t terms) {
  const std::int64_t taps = at.window.kernel_height * at.window.kernel_width;
  if (at.tap_order == TapOrder::byte_pairs) {
    at.sums = at.kernels->short_tap_pairs;
    terms = terms < taps ? terms / 2 : taps;
  }
  if (at.tap_order == TapOrder::pairs) terms = taps;
  at.narrow_steps = static_cast<int>(terms);
}

// Selects the kernel of the sums; `terms` products fit 16 bits.
void select_sums(State& at, const WeightForm& form, std::int64_t terms) {
  const auto scheme = static_cast<std::size_t>(at.scheme);
  at.sums = at.kernels->sums[scheme];
  if (is_depthwise(at.scheme)) return select_depthwise_sums(at, terms);
  if (is_rows(at.scheme)) {
    at.rows = &row_table(at.scheme, at.source.levels);
    at.narrow_steps = row_bytes_in_8_bits(at.scheme, at.source.levels, form);
  }
  if (scheme >= at.kernels->short_dots.size()) return;
  // A lane adds two products in each phase of a step. Few steps would be widened too often.
  constexpr std::int64_t least_steps = 4;
  const std::int64_t steps = terms / (values_per_step(at.scheme) / 2);
  if (at.kernels->short_dots[scheme] == nullptr || steps < least_steps) return;
  at.sums = at.kernels->short_dots[scheme];
  at.narrow_steps = static_cast<int>(std::min<std::int64_t>(steps, 1 << 20));
}

// Whether to store the weights with 16 bits: they stay in the L2 cache, and pixels fill tiles.
bool prefers_words(const State& at, const ProductTask& task) {
  constexpr std::size_t near_bytes = 128 * 1024;
  constexpr std::int64_t least_pixels = 12;
  return at.scheme == Scheme::wide8 && at.kernels->wide_words != nullptr &&
         at.weights.bytes.bytes() <= near_bytes &&
         task.target.height * task.target.width >= least_pixels;
}

// Packs the weights of sums over windows, and selects their kernel.
void pack_direct(State& at, const ProductTask& task, const Weights& weights,
                 const WeightForm& form) {
  const std::int64_t groups = task.product->groups;
  const std::int64_t terms = terms_in_16_bits(task, form);
  at.tap_order = tap_order_of(at, terms);
  const std::vector<PanelChannels> panels = plan_panels(at, groups);
  at.weights =
      pack_weights(at.scheme, weights, form, plan_segments(at, groups), panels,
                   {at.kernels->dot_bytes, at.tap_order, at.kernels->tap_panels}, task.most_bytes);
  at.block_pixels = block_pixels_of(at);
  select_sums(at, form, terms);
  if (at.scheme == Scheme::wide8 && at.kernels->split_pairs != nullptr &&
      split_pairs(at.weights, static_cast<std::int64_t>(panels.size()), at.segments, task))
    at.sums = at.kernels->split_pairs;
  else if (prefers_words(at, task)) {
    widen_weights(at.weights, task.most_bytes);
    at.sums = at.kernels->wide_words;
  }
}

std::unique_ptr<State> make_plain_state(const ProductTask& task, const Storage& source,
                                        const Storage& target, FloatStrides floats, Level level) {
  auto at = std::make_unique<State>();
  const Product& product = *task.product;
  at->source = task.source, at->target = task.target, at->window = product.window;
  at->from = source, at->to = target, at->floats = floats;
  at->places = task.places.value_or(PixelPlaces{0, task.target.width, 1});
  at->channel_runs = task.channel_runs;
  const Weights weights(product, task.target.channels, task.source.channels);
  const WeightForm form(weights);
  at->scheme = select_scheme(task, form, source.coding, level);
  at->kernels = &kernels_of<ProductKernels>(level);
  at->gap = gap_of(*at);
  if (prefers_winograd(task, weights, form, at->scheme, level))
    at->winograd = pack_winograd(task, weights, *at->kernels);
  else pack_direct(*at, task, weights, form);
  fold(*at, weights, form, product.epilogue, task.most_bytes);
  at->epilogue =
      pack_epilogue(product.epilogue, task.target.channels, task.target.levels, task.most_bytes);
  add_steps(at->epilogue, task.more, task.target.channels, task.most_bytes);
  for (const FloatStep& step : task.more)
    if (step.has_array) at->arrays.push_back(step.array);
  at->short_sums = at->kernels->short_sums[static_cast<std::size_t>(at->scheme)];
  const bool is_exact = at->scheme != Scheme::depthwise || at->tap_order == TapOrder::byte_pairs;
  if (at->short_sums != nullptr && is_exact && !at->winograd.used())
    at->short_epilogue = make_short_epilogue(
        task, weights, {at->scales, at->constants, at->padded, at->scheme == Scheme::signs12},
        target.coding);
  simplify(*at, form.largest);
  // For few pixels the entries take more memory than they save time.
  const bool packs = at->settling == Settling::raw && at->to.coding == Coding::bytes &&
                     task.target.height * task.target.width >= 16;
  if (packs &&
      at->kernels->epilogues[static_cast<std::size_t>(EpilogueKind::packed_steps)] != nullptr)
    pack_steps(at->epilogue, task.target.channels, task.target.levels, task.most_bytes);
  if (at->to.coding == Coding::bytes && task.target.height * task.target.width >= 16) {
    if (task.fits_curve &&
        at->kernels->epilogues[static_cast<std::size_t>(EpilogueKind::curved_pieces)] != nullptr)
      fit_curve(at->epilogue, task.target.channels);
    pack_pieces(at->epilogue, task.target.channels, task.most_bytes);
  }
  make_buckets(at->epilogue, task.target.channels, task.target.levels);
  fit_lines(at->epilogue, task.target.channels, task.target.levels);
  fit_rounded_lines(at->epilogue, task.target.channels, task.target.levels);
  check_saturation(at->epilogue, task.target.channels, task.target.levels);
  at->multiplications =
      static_cast<std::int64_t>(weights.values.size()) * task.target.height * task.target.width;
  return at;
}

// A `Scaled` runs as thresholds: the fastest kernel of these is found for them.
std::unique_ptr<State> make_state(const ProductTask& task, const Storage& source,
                                  const Storage& target, FloatStrides floats, Level level) {
  const auto* const scaled = std::get_if<Scaled>(&task.product->epilogue);
  if (scaled == nullptr) return make_plain_state(task, source, target, floats, level);
  need_room(task.target.channels * task.target.levels * 4, task.most_bytes);
  const ScaledSteps steps(*scaled, task.target.levels);
  Product product = *task.product;
  product.epilogue = steps.epilogue();
  ProductTask same = task;
  same.product = &product;
  return make_plain_state(same, source, target, floats, level);
}

}  // namespace

Coding PackedProduct::preferred_coding(const ProductTask& task, Level level) {
  const Weights weights(*task.product, task.target.channels, task.source.channels);
  return select_coding(task, WeightForm(weights), level);
}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, const Storage& target,
                             Level level)
    : state_(make_state(task, source, target, {}, level)) {}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, FloatStrides target,
                             Level level)
    : state_(make_state(task, source, {}, target, level)) {}

PackedProduct::~PackedProduct() = default;
PackedProduct::PackedProduct(PackedProduct&&) noexcept = default;

std::string_view PackedProduct::kernel() const {
  constexpr std::string_view names[scheme_count] = {
      "dot8",  "dot4",   "dot2",      "dot3",      "dot1",     "wide8",
      "xor11", "xor12",  "ternary11", "ternary12", "signs12",  "and21",
      "and22", "rows11", "rows22",    "depthwise", "depthwise"};
  return state_->winograd.used() ? "winograd" : names[static_cast<std::size_t>(state_->scheme)];
}

std::int64_t PackedProduct::bytes() const {
  const State& at = *state_;
  return static_cast<std::int64_t>(
      at.weights.bytes.bytes() + at.winograd.weights.bytes() + at.constants.bytes() +
      at.scales.bytes() + at.epilogue.thresholds.bytes() + at.short_epilogue.bytes() +
      at.epilogue.buckets.codes.bytes() + at.epilogue.packed.entries.bytes() +
      at.epilogue.piece_codes.bytes() + at.epilogue.curve.panels.size() * sizeof(CurvePanel) +
      at.epilogue.entries.size() + at.epilogue.operands.size() * at.epilogue.gains.bytes() +
      (at.line_class.size() + at.column_class.size()) * 4);
}

std::int64_t PackedProduct::multiplications() const { return state_->multiplications; }

std::int64_t PackedProduct::line_grain() const {
  return state_->winograd.used() ? winograd_outputs : 1;
}

void PackedProduct::run(const std::byte* source, std::byte* target, const Part& part) const {
  run_product(*state_, part, source, target, nullptr, nullptr);
}

void PackedProduct::run(const std::byte* source, float* target, const Part& part,
                        const float* const* arrays) const {
  run_product(*state_, part, source, nullptr, target, arrays);
}

}  // namespace anybit::lowbit
